package demo

// What its tests look at.
var (
	TensorDigests = tensorDigests
	PartSums      = partSums
)
