"""Tables and figures of bernau2021: how well a record is identified by its gradients."""
