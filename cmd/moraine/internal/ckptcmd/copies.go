package ckptcmd

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/localfiles"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/filecmd"
)

// fileCopy is one file to write.
type fileCopy struct {
	path string // below the target
	size int64
	fill func(ctx context.Context, w io.Writer) error
}

// copiesOf returns the files from which k was saved, or, with parts, or if it was not saved from
// files, those of its directory.
func copiesOf(ctx context.Context, k *ckpt.Checkpoint, parts bool) ([]fileCopy, error) {
	if !parts {
		saved, err := localfiles.Saved(ctx, k)
		if err != nil {
			return nil, err
		}
		if len(saved) > 0 {
			return originals(k, saved), nil
		}
	}
	var copies []fileCopy
	for i, f := range k.Files() {
		copies = append(copies, fileCopy{filepath.FromSlash(f.Path), f.Size, func(ctx context.Context, w io.Writer) error { return k.WriteFile(ctx, w, i) }})
	}
	return copies, nil
}

func originals(k *ckpt.Checkpoint, saved []localfiles.Original) []fileCopy {
	var copies []fileCopy
	for i, path := range localfiles.Paths(saved) {
		copies = append(copies, fileCopy{path, saved[i].Size, func(ctx context.Context, w io.Writer) error { return saved[i].Write(ctx, k, w) }})
	}
	return copies
}

// target is a local directory that gets copies.
type target struct {
	env    *cli.Env
	dir    string
	mode   fs.FileMode
	copies []fileCopy
	done   string // what the bar calls a byte that is written
}

// bytes adds up the copies.
func (t *target) bytes() (total int64) {
	for _, c := range t.copies {
		total += c.size
	}
	return total
}

// write writes all copies. Each appears when it is complete. After an error it removes those that
// it wrote: half a checkpoint is useless.
func (t *target) write(ctx context.Context) (err error) {
	b := t.env.StartBar(t.done, t.bytes())
	defer func() { b.Finish(err) }()
	for n, c := range t.copies {
		if err := t.writeOne(ctx, c, b); err != nil {
			for _, before := range t.copies[:n] {
				err = errors.Join(err, os.Remove(filepath.Join(t.dir, before.path)))
			}
			return err
		}
	}
	return nil
}

func (t *target) writeOne(ctx context.Context, c fileCopy, b *cli.Bar) error {
	to := filepath.Join(t.dir, c.path)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return filecmd.WriteWhole(to, t.mode, func(f *os.File) error { return c.fill(ctx, countedWriter{f, b}) })
}

// countedWriter shows on a bar what it has written.
type countedWriter struct {
	w io.Writer
	b *cli.Bar
}

// Write writes to w.
func (c countedWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.b.Add(int64(n))
	return n, err
}
