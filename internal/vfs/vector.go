package vfs

import (
	"io"

	"golang.org/x/sys/unix"
)

// VectorWriter is an optional interface of a File: one write from several buffers.
type VectorWriter interface {
	// WriteVAt writes the buffers one after the other from off, and returns how
	// many bytes in all. On a Direct file each buffer must be aligned, in address
	// and length. It returns an error if it wrote fewer than all.
	WriteVAt(bufs [][]byte, off int64) (int, error)
}

// WriteAll writes the buffers one after the other from off: in one call if f is a
// VectorWriter, otherwise one by one.
func WriteAll(f File, bufs [][]byte, off int64) (int, error) {
	if v, ok := f.(VectorWriter); ok {
		return v.WriteVAt(bufs, off)
	}
	total := 0
	for _, b := range bufs {
		n, err := f.WriteAt(b, off+int64(total))
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// WriteVAt implements VectorWriter with pwritev(2).
func (o *osFile) WriteVAt(bufs [][]byte, off int64) (int, error) {
	total := 0
	rest := append([][]byte(nil), bufs...)
	for len(rest) > 0 {
		var n int
		err := control(o.f, func(fd int) error {
			var err error
			n, err = unix.Pwritev(fd, rest, off+int64(total))
			return err
		})
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return total, o.path("pwritev", err)
		}
		total += n
		rest = advance(rest, n)
	}
	return total, nil
}

// advance drops the first n bytes of bufs, and with them the empty ones.
func advance(bufs [][]byte, n int) [][]byte {
	for len(bufs) > 0 && n >= len(bufs[0]) {
		n -= len(bufs[0])
		bufs = bufs[1:]
	}
	if n > 0 {
		bufs[0] = bufs[0][n:]
	}
	return bufs
}
