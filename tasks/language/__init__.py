"""Language models, and models of the BERT family with the texts they are fine-tuned on."""
