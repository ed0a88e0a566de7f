package demo

// Exports for the tests.
var (
	TensorDigests = tensorDigests
	PartSums      = partSums
)
