package twomounts_test

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"

	"golang.org/x/sys/unix"
)

// operation is a kind of step.
type operation struct {
	name string
	// weight is how often it comes, beside the others.
	weight int
	// uses is how many open files it needs, and paths how many names.
	uses, paths int
	// opens: its slot gets a file. content: it looks at or changes what files have.
	// locks: it asks for a lock.
	opens, content, locks bool
	// flags are those of which a step has one.
	flags []int
	// do makes the calls on one side, and returns what they answered.
	do func(d *side, s *step) string
	// check, if not nil, compares the sides instead of what do returned.
	check func(mount, ext4 *side, s *step) string
}

// operations are all of them.
var operations = slices.Concat(nameCalls, attrCalls, fileCalls, rangeCalls, lockCalls)

func operationNamed(name string) *operation {
	return &operations[slices.IndexFunc(operations, func(o operation) bool { return o.name == name })]
}

// result is the answer of a call.
func result(err error, more ...any) string {
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(append([]any{"ok"}, more...)...)
}

// sum names bytes.
func sum(b []byte) string { return fmt.Sprintf("%d bytes %.6x", len(b), sha256.Sum256(b)) }

// bytesOf are the bytes that a step writes.
func bytesOf(s *step) []byte {
	b := make([]byte, s.n)
	var key [32]byte
	for i := range 8 {
		key[i] = byte(s.seed >> (8 * i))
	}
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}

// writeWhole writes a file in one call, from its open to its close.
func writeWhole(d *side, s *step) string {
	fd, err := unix.Openat(d.top, s.path, s.flags|unix.O_NONBLOCK|unix.O_CLOEXEC, s.mode)
	if err != nil {
		return result(err)
	}
	n, err := unix.Write(fd, bytesOf(s))
	return result(err, n, " ", unix.Close(fd))
}

// readWhole reads a file, from its open to its close.
func readWhole(d *side, s *step) string {
	fd, err := unix.Openat(d.top, s.path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return result(err)
	}
	b, err := readAll(fd)
	return result(err, sum(b), " ", unix.Close(fd))
}

// readAll reads a file from its start to its end.
func readAll(fd int) (all []byte, err error) {
	b := make([]byte, 77_777)
	for {
		n, err := unix.Pread(fd, b, int64(len(all)))
		if n <= 0 {
			return all, err
		}
		all = append(all, b[:n]...)
	}
}
