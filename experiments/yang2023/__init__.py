"""On the Privacy Risks of Deploying Recurrent Neural Networks in Machine Learning Models (2023)."""
