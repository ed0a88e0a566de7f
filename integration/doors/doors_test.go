package doors_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/morainefs/moraine/client"
)

// door is one interface to the files. Paths are those of the namespace.
type door interface {
	name() string
	// put makes a file of data, or replaces the contents of an existing one.
	put(ctx context.Context, path string, data []byte) error
	read(ctx context.Context, path string) ([]byte, error)
	readRange(ctx context.Context, path string, off, n int) ([]byte, error)
	remove(ctx context.Context, path string) error
	// list returns the names in a directory.
	list(ctx context.Context, dir string) ([]string, error)
}

// changer is a door that changes files in place, and names.
type changer interface {
	door
	write(ctx context.Context, path string, off int, data []byte) error
	append(ctx context.Context, path string, data []byte) error
	truncate(ctx context.Context, path string, size int) error
	rename(ctx context.Context, from, to string) error
}

// cloner is a door that copies without moving a byte.
type cloner interface {
	door
	clone(ctx context.Context, from, to string) error
}

// mountDoor is a mounted directory.
type mountDoor struct{ label, dir string }

func (m *mountDoor) name() string          { return m.label }
func (m *mountDoor) at(path string) string { return filepath.Join(m.dir, path) }

func (m *mountDoor) put(_ context.Context, path string, data []byte) error {
	return m.open(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, func(f *os.File) error {
		half := len(data) / 2
		if _, err := f.Write(data[:half]); err != nil {
			return err
		}
		_, err := f.Write(data[half:])
		return err
	})
}

// open runs fn with a file, and returns any error up to its close.
func (m *mountDoor) open(path string, flags int, fn func(f *os.File) error) error {
	f, err := os.OpenFile(m.at(path), flags, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(fn(f), f.Close())
}

func (m *mountDoor) read(_ context.Context, path string) ([]byte, error) {
	return os.ReadFile(m.at(path))
}

func (m *mountDoor) readRange(_ context.Context, path string, off, n int) (data []byte, err error) {
	err = m.open(path, os.O_RDONLY, func(f *os.File) error {
		data = make([]byte, n)
		_, err := f.ReadAt(data, int64(off))
		return err
	})
	return data, err
}

func (m *mountDoor) remove(_ context.Context, path string) error { return os.Remove(m.at(path)) }

func (m *mountDoor) list(_ context.Context, dir string) (names []string, err error) {
	entries, err := os.ReadDir(m.at(dir))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (m *mountDoor) write(_ context.Context, path string, off int, data []byte) error {
	return m.open(path, os.O_WRONLY, func(f *os.File) error {
		_, err := f.WriteAt(data, int64(off))
		return err
	})
}

func (m *mountDoor) append(_ context.Context, path string, data []byte) error {
	return m.open(path, os.O_WRONLY|os.O_APPEND, func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
}

func (m *mountDoor) truncate(_ context.Context, path string, size int) error {
	return os.Truncate(m.at(path), int64(size))
}

func (m *mountDoor) rename(_ context.Context, from, to string) error {
	return os.Rename(m.at(from), m.at(to))
}

// clientDoor is a Go client.
type clientDoor struct{ c *client.Client }

func (d *clientDoor) name() string { return "client" }

func (d *clientDoor) put(ctx context.Context, path string, data []byte) error {
	f, err := d.c.Create(ctx, path, client.CreateOptions{Replace: true})
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	_, err = f.Commit(ctx)
	return err
}

func (d *clientDoor) read(ctx context.Context, path string) ([]byte, error) {
	r, err := d.c.OpenFile(ctx, path)
	if err != nil {
		return nil, err
	}
	data := make([]byte, r.Size())
	return data, errors.Join(r.ReadRange(ctx, data, 0), r.Close())
}

func (d *clientDoor) readRange(ctx context.Context, path string, off, n int) (data []byte, err error) {
	data = make([]byte, n)
	err = d.handle(ctx, path, func(h *client.Handle) error {
		_, err := h.ReadAt(ctx, data, int64(off))
		return err
	})
	return data, err
}

func (d *clientDoor) remove(ctx context.Context, path string) error { return d.c.Remove(ctx, path) }

func (d *clientDoor) list(ctx context.Context, dir string) (names []string, err error) {
	for e, err := range d.c.ReadDir(ctx, dir) {
		if err != nil {
			return nil, err
		}
		names = append(names, e.Name)
	}
	return names, nil
}

// handle runs fn with a file that is open for writing.
func (d *clientDoor) handle(ctx context.Context, path string, fn func(h *client.Handle) error) error {
	a, err := d.c.Stat(ctx, path)
	if err != nil {
		return err
	}
	h, err := d.c.Inodes().OpenHandle(ctx, a.Inode(), client.HandleOptions{})
	if err != nil {
		return err
	}
	return errors.Join(fn(h), h.Close(ctx))
}

func (d *clientDoor) write(ctx context.Context, path string, off int, data []byte) error {
	return d.handle(ctx, path, func(h *client.Handle) error {
		_, err := h.WriteAt(ctx, data, int64(off))
		return err
	})
}

func (d *clientDoor) append(ctx context.Context, path string, data []byte) error {
	return d.handle(ctx, path, func(h *client.Handle) error {
		_, _, err := h.Append(ctx, data)
		return err
	})
}

func (d *clientDoor) truncate(ctx context.Context, path string, size int) error {
	_, err := d.c.SetAttr(ctx, path, client.SetAttr{Size: new(int64(size))})
	return err
}

func (d *clientDoor) rename(ctx context.Context, from, to string) error {
	return d.c.Rename(ctx, from, to, client.RenameOptions{})
}

func (d *clientDoor) clone(ctx context.Context, from, to string) error {
	a, err := d.c.Stat(ctx, from)
	if err != nil {
		return err
	}
	_, err = d.c.CloneFile(ctx, a.Inode(), to, client.CreateOptions{Replace: true})
	return err
}

// s3Door is the S3 endpoint.
type s3Door struct{ core *minio.Core }

func (d *s3Door) name() string { return "s3" }

// split splits a path into bucket and key.
func split(path string) (bucket, key string) {
	bucket, key, _ = strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return bucket, key
}

// s3Part is the length of the parts of uploads: the least that S3 permits.
const s3Part = 5 << 20

// put is one request or, for a third of all lengths, an upload in parts.
func (d *s3Door) put(ctx context.Context, path string, data []byte) error {
	if len(data)%3 == 0 {
		return d.putParts(ctx, path, data)
	}
	bucket, key := split(path)
	_, err := d.core.Client.PutObject(ctx, bucket, key, bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{DisableMultipart: true})
	return err
}

func (d *s3Door) putParts(ctx context.Context, path string, data []byte) error {
	bucket, key := split(path)
	id, err := d.core.NewMultipartUpload(ctx, bucket, key, minio.PutObjectOptions{})
	if err != nil {
		return err
	}
	var parts []minio.CompletePart
	for off := 0; off == 0 || off < len(data); off += s3Part {
		body := data[off:min(off+s3Part, len(data))]
		p, err := d.core.PutObjectPart(ctx, bucket, key, id, len(parts)+1, bytes.NewReader(body), int64(len(body)), minio.PutObjectPartOptions{})
		if err != nil {
			return err
		}
		parts = append(parts, minio.CompletePart{PartNumber: len(parts) + 1, ETag: p.ETag})
	}
	_, err = d.core.CompleteMultipartUpload(ctx, bucket, key, id, parts, minio.PutObjectOptions{})
	return err
}

func (d *s3Door) read(ctx context.Context, path string) ([]byte, error) {
	return d.get(ctx, path, minio.GetObjectOptions{})
}

func (d *s3Door) readRange(ctx context.Context, path string, off, n int) ([]byte, error) {
	var opts minio.GetObjectOptions
	if err := opts.SetRange(int64(off), int64(off+n-1)); err != nil {
		return nil, err
	}
	return d.get(ctx, path, opts)
}

func (d *s3Door) get(ctx context.Context, path string, opts minio.GetObjectOptions) ([]byte, error) {
	bucket, key := split(path)
	body, _, _, err := d.core.GetObject(ctx, bucket, key, opts)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(body)
	return data, errors.Join(err, body.Close())
}

func (d *s3Door) remove(ctx context.Context, path string) error {
	bucket, key := split(path)
	return d.core.RemoveObject(ctx, bucket, key, minio.RemoveObjectOptions{})
}

func (d *s3Door) list(ctx context.Context, dir string) (names []string, err error) {
	bucket, prefix := split(dir + "/")
	for o := range d.core.Client.ListObjects(ctx, bucket, minio.ListObjectsOptions{Prefix: prefix}) {
		if o.Err != nil {
			return nil, o.Err
		}
		if o.Key != prefix { // the directory's own key
			names = append(names, strings.TrimSuffix(strings.TrimPrefix(o.Key, prefix), "/"))
		}
	}
	return names, nil
}

func (d *s3Door) clone(ctx context.Context, from, to string) error {
	srcBucket, srcKey := split(from)
	bucket, key := split(to)
	_, err := d.core.CopyObject(ctx, srcBucket, srcKey, bucket, key, nil, minio.CopySrcOptions{}, minio.PutObjectOptions{})
	return err
}
