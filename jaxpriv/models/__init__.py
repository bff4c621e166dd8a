"""Flax modules of the models of the papers and of the report, one family per file.

Each takes one example or a batch, and keeps no state beside its parameters.
"""

from jaxpriv.models import (
    actor_critic,
    alexnet,
    bert,
    cnn,
    decoding,
    densenet,
    membership,
    mlp,
    rnn,
    seq2seq,
    transformer,
)
from jaxpriv.models.actor_critic import ActorCritic
from jaxpriv.models.alexnet import AlexNet
from jaxpriv.models.bert import Bert, BertTranslator, load_bert
from jaxpriv.models.cnn import CNN
from jaxpriv.models.decoding import Decoded, beam_search, greedy
from jaxpriv.models.densenet import DenseNet
from jaxpriv.models.membership import MembershipNet, RecurrentMembershipNet
from jaxpriv.models.mlp import MLP
from jaxpriv.models.rnn import RNN
from jaxpriv.models.seq2seq import Seq2Seq
from jaxpriv.models.transformer import Classifier, Transformer

__all__ = [
    "CNN",
    "MLP",
    "RNN",
    "ActorCritic",
    "AlexNet",
    "Bert",
    "BertTranslator",
    "Classifier",
    "Decoded",
    "DenseNet",
    "MembershipNet",
    "RecurrentMembershipNet",
    "Seq2Seq",
    "Transformer",
    "actor_critic",
    "alexnet",
    "beam_search",
    "bert",
    "cnn",
    "decoding",
    "densenet",
    "greedy",
    "load_bert",
    "membership",
    "mlp",
    "rnn",
    "seq2seq",
    "transformer",
]
