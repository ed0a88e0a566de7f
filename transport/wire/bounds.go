package wire

// MaxConcatRanges is the most ranges of one Concat: the parts of an S3 upload.
const MaxConcatRanges = 10_000
