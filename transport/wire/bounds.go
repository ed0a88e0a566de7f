package wire

// MaxConcatRanges is the most ranges of one Concat: the parts of an S3 upload.
const MaxConcatRanges = 10_000

const (
	// MaxPackChunks bounds the chunks of all stripes that one CommitPack takes away: each is
	// two records that it writes.
	MaxPackChunks = 384
	// LeastPacked is how many files are put into one stripe where they are too little for
	// one that is coded.
	LeastPacked = 8
	// ReadClasses is how many kinds of reads, by their length, Device.read_micros tells of.
	ReadClasses = 4
)
