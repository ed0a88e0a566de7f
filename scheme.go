package moraine

import (
	"fmt"
	"strconv"
	"strings"
)

// Scheme says how a stripe is made: K data chunks and M parity chunks (Reed-Solomon), or, if K
// is 1, M+1 copies of one chunk. Its text form is `4+2` or `x3`, everywhere.
type Scheme struct {
	K, M uint8
}

// MaxChunks bounds K+M of a scheme.
const MaxChunks = 32

// Copies returns the scheme of n copies, `xn`.
func Copies(n int) Scheme { return Scheme{K: 1, M: uint8(n - 1)} }

// ParseScheme parses `k+m` or `xn`.
func ParseScheme(s string) (Scheme, error) {
	bad := func() (Scheme, error) {
		return Scheme{}, &Error{Op: "parse scheme", Ref: s, Kind: InvalidArgument,
			Err: fmt.Errorf("write k+m (such as 4+2, k from 2, k+m up to %d) or xN (such as x3)", MaxChunks)}
	}
	if n, ok := strings.CutPrefix(s, "x"); ok {
		c, err := strconv.Atoi(n)
		if err != nil || c < 1 || c > MaxChunks {
			return bad()
		}
		return Copies(c), nil
	}
	a, b, ok := strings.Cut(s, "+")
	k, errK := strconv.Atoi(a)
	m, errM := strconv.Atoi(b)
	if !ok || errK != nil || errM != nil || k < 2 || m < 0 || k+m > MaxChunks {
		return bad()
	}
	return Scheme{K: uint8(k), M: uint8(m)}, nil
}

// Valid reports whether a stripe can have scheme s.
func (s Scheme) Valid() bool { return s.K >= 1 && int(s.K)+int(s.M) <= MaxChunks }

// Chunks returns how many chunks a stripe of s has.
func (s Scheme) Chunks() int { return int(s.K) + int(s.M) }

// IsCopies reports whether every chunk of a stripe has the same bytes.
func (s Scheme) IsCopies() bool { return s.K == 1 }

// ChunkLen returns the length of each chunk of a stripe with length bytes of a file: length/K
// rounded up to BlockSize. The last data chunks may have fewer file bytes than that, and are
// padded with zeros.
func (s Scheme) ChunkLen(length int64) int64 {
	c := (length + int64(s.K) - 1) / int64(s.K)
	return (c + BlockSize - 1) / BlockSize * BlockSize
}

// String returns `k+m`, `xn`, or "none" for the zero Scheme.
func (s Scheme) String() string {
	if s.K == 0 {
		return "none"
	}
	if s.IsCopies() {
		return fmt.Sprintf("x%d", s.M+1)
	}
	return fmt.Sprintf("%d+%d", s.K, s.M)
}

// DefaultScheme returns the scheme of new files without a policy, by the number of registered
// hosts and devices, whether they are up or not.
func DefaultScheme(hosts, devices int) Scheme {
	switch {
	case hosts >= 6:
		return Scheme{K: 4, M: 2}
	case hosts >= 3:
		return Copies(3)
	case hosts == 2:
		return Copies(2)
	case devices >= 2:
		return Copies(2)
	default:
		return Copies(1)
	}
}

// Layout is where a stripe is: its scheme and the device of each chunk, in order of index.
// Every change of Devices raises Version.
type Layout struct {
	Scheme  Scheme
	Version LayoutVersion
	Devices []DeviceID
}

// Level says how safe bytes are. Greater is safer.
type Level uint8

const (
	// Local is the memory of this node. For checkpoints it is shared memory that survives a crash of the
	// trainer: nothing reaches it yet, and ckpt.Part.Wait refuses it. For small files of a mount it is the memory
	// of the mount, see client.HandleOptions.
	Local Level = iota + 1
	// Memory is the RAM of k+m chunkservers: it survives the loss of m nodes.
	Memory
	// NVMe is fsynced on k+m chunkservers: it survives power loss.
	NVMe
	// Object is uploaded to, and verified in, a bucket: it survives the loss
	// of the whole cluster.
	Object
)

var levelNames = [...]string{Local: "local", Memory: "memory", NVMe: "nvme", Object: "object"}

// String returns the level's name, or "none" for 0 and unknown levels.
func (l Level) String() string {
	if l >= Local && l <= Object {
		return levelNames[l]
	}
	return "none"
}

// ParseLevel parses the name of a level.
func ParseLevel(s string) (Level, error) {
	for l := Local; l <= Object; l++ {
		if levelNames[l] == s {
			return l, nil
		}
	}
	return 0, &Error{Op: "parse level", Ref: s, Kind: InvalidArgument,
		Err: fmt.Errorf("write local, memory, nvme or object")}
}
