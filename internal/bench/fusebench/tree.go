package fusebench

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

const (
	// treeFolder is how many files a directory of the tree has.
	treeFolder = 12
	// treeMedian is the median length of its files, and treeSpread the standard deviation
	// of the length's logarithm: a tree of sources is like this.
	treeMedian, treeSpread = 4 << 10, 1.2
	treeLargest            = 256 << 10
)

// tree is the directory of the unpacked tree.
func (s *site) tree() string { return filepath.Join(s.dir, "tree") }

// pack writes the archive of untar, where a chosen row needs it. It is the same each time.
func (r *run) pack(chosen []choice) (err error) {
	if !slices.ContainsFunc(chosen, func(c choice) bool { return c.name == "untar" }) {
		return nil
	}
	f, err := os.CreateTemp(r.Dir, "moraine-bench-tree-*.tar")
	if err != nil {
		return err
	}
	r.archive = f.Name()
	buffered := bufio.NewWriterSize(f, 1<<20)
	return errors.Join(writeTree(tar.NewWriter(buffered), r.TreeFiles), buffered.Flush(), f.Close())
}

func writeTree(w *tar.Writer, files int) error {
	random := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, treeLargest)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	at := time.Unix(1_700_000_000, 0)
	dir := ""
	for i := range files {
		if i%treeFolder == 0 {
			dir = fmt.Sprintf("tree/part-%02d/folder-%04d/", i/treeFolder%20, i/treeFolder)
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755, ModTime: at}); err != nil {
				return err
			}
		}
		size := int64(min(treeLargest, treeMedian*math.Exp(treeSpread*random.NormFloat64())))
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("%sfile-%06d.txt", dir, i), Size: size, Mode: 0o644, ModTime: at}); err != nil {
			return err
		}
		if _, err := w.Write(data[:size]); err != nil {
			return err
		}
	}
	return w.Close()
}

// untar unpacks the archive.
func untar(ctx context.Context, s *site) (done, error) {
	return s.command(ctx, nil, "tar", "-C", s.dir, "-xf", s.archive)
}

// list runs ls -lR on the tree, and counts its lines of files.
func list(ctx context.Context, s *site) (d done, err error) {
	out, err := os.CreateTemp(s.Dir, "moraine-bench-ls-*")
	if err != nil {
		return done{}, err
	}
	defer func() { err = errors.Join(err, out.Close(), os.Remove(out.Name())) }()
	if d, err = s.command(ctx, out, "ls", "-lR", s.tree()); err != nil {
		return done{}, err
	}
	text, err := os.ReadFile(out.Name())
	if err != nil {
		return done{}, err
	}
	if n := bytes.Count(text, []byte("\n-rw")); n != s.TreeFiles {
		return done{}, fmt.Errorf("ls -lR shows %d files, not %d", n, s.TreeFiles)
	}
	d.bytes = int64(len(text))
	return d, nil
}

// removeTree removes the tree.
func removeTree(ctx context.Context, s *site) (done, error) {
	return s.command(ctx, nil, "rm", "-r", s.tree())
}

// command runs a program on the tree; its operations are the files of the tree.
func (s *site) command(ctx context.Context, out *os.File, name string, args ...string) (done, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var said bytes.Buffer
	cmd.Stderr = &said
	if out != nil {
		cmd.Stdout = out
	}
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return done{}, fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(said.Bytes()))
	}
	return done{ops: int64(s.TreeFiles), wall: time.Since(start), cpu: commandCPU(cmd.ProcessState)}, nil
}

// treeIs returns a check: all files of the tree are there, or nothing of it is.
func treeIs(there bool) func(context.Context, *site) error {
	return func(_ context.Context, s *site) error {
		found := 0
		err := filepath.WalkDir(s.tree(), func(_ string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() {
				found++
			}
			return err
		})
		switch {
		case !there && errors.Is(err, fs.ErrNotExist):
			return nil
		case !there:
			return errors.Join(err, fmt.Errorf("%s is still there", s.tree()))
		case err == nil && found != s.TreeFiles:
			return fmt.Errorf("%s has %d files, not %d", s.tree(), found, s.TreeFiles)
		}
		return err
	}
}
