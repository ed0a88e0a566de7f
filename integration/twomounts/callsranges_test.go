package twomounts_test

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// rangeCalls change and find ranges of files.
var rangeCalls = []operation{
	{name: "fallocate", weight: 6, uses: 1, content: true,
		flags: []int{0, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE,
			unix.FALLOC_FL_ZERO_RANGE, unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE},
		do: func(d *side, s *step) string {
			return result(unix.Fallocate(d.fds[s.slot], uint32(s.flags), s.off, int64(s.n)))
		}},
	{name: "copy range", weight: 6, uses: 2, content: true, do: func(d *side, s *step) string {
		return copyRange(d.fds[s.slot], d.fds[s.slot2], s.off, s.off2, s.n)
	}},
	{name: "sendfile", weight: 2, uses: 2, content: true, do: func(d *side, s *step) string {
		var from, to unix.Stat_t
		_, _ = unix.Fstat(d.fds[s.slot], &from), unix.Fstat(d.fds[s.slot2], &to)
		if from.Ino == to.Ino { // how much is read before something is written is up to the kernel
			return "one file"
		}
		off := s.off
		n, err := unix.Sendfile(d.fds[s.slot2], d.fds[s.slot], &off, s.n)
		return result(err, n, " ", off)
	}},
	{name: "clone", weight: 1, uses: 2, content: true, do: func(d *side, s *step) string {
		return result(unix.IoctlFileClone(d.fds[s.slot2], d.fds[s.slot]))
	}},
	{name: "find holes", weight: 5, uses: 1, content: true, do: func(*side, *step) string { return "" }, check: holesAreZeros},
}

// copyRange copies until nothing is left to copy: a call may copy less.
func copyRange(from, to int, off, off2 int64, n int) string {
	total := 0
	for total < n {
		k, err := unix.CopyFileRange(from, &off, to, &off2, n-total, 0)
		if err != nil {
			return result(err) + fmt.Sprint(" after ", total)
		}
		if k == 0 {
			break
		}
		total += k
	}
	return result(nil, total, " ", off, " ", off2)
}

// holesAreZeros compares what a mount says of holes with the bytes on ext4, whose own
// holes are of whole blocks.
func holesAreZeros(mount, ext4 *side, s *step) string {
	fd := mount.fds[s.slot]
	if fd < 0 {
		return ""
	}
	want, wantErr := readAll(ext4.fds[s.slot])
	if wantErr != nil {
		return "" // it was opened for writing only
	}
	defer func() { // where the file is read next
		_, _ = unix.Seek(fd, s.off2, unix.SEEK_SET)
		_, _ = unix.Seek(ext4.fds[s.slot], s.off2, unix.SEEK_SET)
	}()
	at, size := s.off, int64(len(want))
	for at < size {
		data, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			data, err = size, nil
		}
		if err != nil || data < at || data > size {
			return fmt.Sprintf("SEEK_DATA from %d of %d: %d, %v", at, size, data, err)
		}
		for i, b := range want[at:data] {
			if b != 0 {
				return fmt.Sprintf("SEEK_DATA from %d: %d, but byte %d is data", at, data, at+int64(i))
			}
		}
		if data == size {
			break
		}
		hole, err := unix.Seek(fd, data, unix.SEEK_HOLE)
		if err != nil || hole <= data || hole > size {
			return fmt.Sprintf("SEEK_HOLE from %d of %d: %d, %v", data, size, hole, err)
		}
		at = hole
	}
	for _, whence := range []int{unix.SEEK_DATA, unix.SEEK_HOLE} {
		if at, err := unix.Seek(fd, size, whence); !errors.Is(err, unix.ENXIO) {
			return fmt.Sprintf("whence %d at the end: %d, %v", whence, at, err)
		}
	}
	return ""
}
