package twomounts_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// describe is what is compared of attributes. Times of today are those of a change,
// which both sides make; others were set. What is unsynced has no size and time yet.
func describe(st *unix.Stat_t, unsynced bool) string {
	kind := st.Mode & unix.S_IFMT
	out := fmt.Sprintf("mode %#o owner %d:%d", st.Mode, st.Uid, st.Gid)
	if kind != unix.S_IFDIR { // a directory's links and size are the file system's own
		out += fmt.Sprintf(" links %d", st.Nlink)
	}
	if kind == unix.S_IFCHR || kind == unix.S_IFBLK {
		out += fmt.Sprintf(" device %#x", st.Rdev)
	}
	if unsynced && kind == unix.S_IFREG {
		return out
	}
	if kind != unix.S_IFDIR {
		out += fmt.Sprintf(" size %d", st.Size)
	}
	when := time.Unix(st.Mtim.Unix())
	if time.Since(when).Abs() < 24*time.Hour {
		return out + " changed now"
	}
	return out + " changed " + when.UTC().Format(time.RFC3339Nano)
}

func lstat(top int, path string, unsynced bool) string {
	var st unix.Stat_t
	if err := unix.Fstatat(top, path, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err.Error()
	}
	return describe(&st, unsynced)
}

// tree describes all that is below a directory, a line for each name.
func tree(dir string) string {
	var out strings.Builder
	first := map[uint64]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := path[len(dir):]
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		fmt.Fprintf(&out, "%q %s", rel, describe(&st, false))
		if st.Nlink > 1 && !d.IsDir() {
			if first[st.Ino] == "" {
				first[st.Ino] = rel
			}
			fmt.Fprintf(&out, " as %q", first[st.Ino])
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			b, err := os.ReadFile(path)
			fmt.Fprintf(&out, " content %.6x %v", sha256.Sum256(b), err)
		case unix.S_IFLNK:
			to, err := os.Readlink(path)
			fmt.Fprintf(&out, " to %q %v", to, err)
		}
		fmt.Fprintf(&out, " %s\n", attributes(path))
		return nil
	})
	if err != nil {
		return err.Error()
	}
	return out.String()
}

// attributes are the extended attributes of a file.
func attributes(path string) string {
	list := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, list)
	if err != nil {
		return err.Error()
	}
	var out []string
	for name := range strings.SplitSeq(string(list[:n]), "\x00") {
		if name != "" {
			value := make([]byte, 64<<10)
			n, err := unix.Lgetxattr(path, name, value)
			out = append(out, fmt.Sprintf("%q=%x %v", name, value[:max(n, 0)], err))
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}
