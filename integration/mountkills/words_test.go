package mountkills_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
)

// The content of a file is words of 8 bytes. Each has the version of the write that it is of, and
// its own place, so a word of another version or from another place is seen.

const placeBits = 24

// words are the bytes of a version from an offset on.
func words(version, off, size int64) []byte {
	b := make([]byte, 0, size)
	for i := off / 8; i < (off+size)/8; i++ {
		b = binary.LittleEndian.AppendUint64(b, uint64(version<<placeBits|i))
	}
	return b
}

// fill is words, into memory.
func fill(b []byte, version int64) {
	for i := range len(b) / 8 {
		binary.LittleEndian.PutUint64(b[8*i:], uint64(version<<placeBits|int64(i)))
	}
}

// versions returns the oldest and the newest version among the words.
func versions(b []byte, off int64) (low, high int64, err error) {
	if len(b) == 0 || len(b)%8 != 0 {
		return 0, 0, wrongBytes(fmt.Sprintf("%d bytes at %d", len(b), off))
	}
	for i := range int64(len(b) / 8) {
		w := int64(binary.LittleEndian.Uint64(b[8*i:]))
		if w&(1<<placeBits-1) != off/8+i || w>>placeBits == 0 {
			return low, high, wrongBytes(fmt.Sprintf("at %d is %#x, of %d bytes at %d", off+8*i, w, len(b), off))
		}
		if v := w >> placeBits; i == 0 {
			low, high = v, v
		} else {
			low, high = min(low, v), max(high, v)
		}
	}
	return low, high, nil
}

// readVersions opens a file and reads it whole, into the event.
func readVersions(name string, size int64, e *event) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	if size >= 0 && int64(len(b)) != size {
		return wrongBytes(fmt.Sprintf("the file has %d bytes, and not %d", len(b), size))
	}
	e.Low, e.High, err = versions(b, 0)
	return err
}
