package wire

// MaxConcatRanges is the most ranges of one Concat: the parts of an S3 upload.
const MaxConcatRanges = 10_000

const (
	// MaxPackChunks limits the chunks of all stripes that one CommitRewrite of
	// several files removes: each costs it two records.
	MaxPackChunks = 384
	// LeastPacked is how many files are put into one stripe if they are too small
	// for a coded one.
	LeastPacked = 8
	// MaxClaims is how many groups of slices a rank may claim in a step, and ClaimBytes the length of
	// what names a group.
	MaxClaims  = 16
	ClaimBytes = 16
	// MaxSealTimeoutMillis bounds how long an open step waits for the next seal: a week. Its bytes take space until
	// it ends.
	MaxSealTimeoutMillis = 7 * 24 * 3600 * 1000
	// MaxKeepMillis bounds how long a policy keeps steps by their age: a hundred years.
	MaxKeepMillis = 100 * 366 * 24 * 3600 * 1000
	// MaxBatchOps and MaxBatchBytes bound the changes of one Batch, and its encoded length.
	MaxBatchOps   = 512
	MaxBatchBytes = 1 << 20
	// MaxAlso is the most other directories of one ReadDir, and the most other files of one GetExtents.
	MaxAlso = 64
	// MaxEndDelegation is the most directories of one EndDelegation.
	MaxEndDelegation = 256
	// MaxFindOrphans is the most files of one FindOrphans, and MaxKeep of one Keep or Release.
	MaxFindOrphans = 4096
	MaxKeep        = 256
	// MaxRaiseAtimes is the most files of one RaiseAtimes.
	MaxRaiseAtimes = 512
	// ReadClasses is the number of length classes of reads in Device.read_micros.
	ReadClasses = 4
)

// ManyRanks is how many ranks a step has whose check begins with its first seal.
const ManyRanks = 256
