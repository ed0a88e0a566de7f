package localstore

import (
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"syscall"

	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/vfs"
)

func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) }

// written is a durable file that does not have its final name yet.
type written struct {
	path   string
	record Record
}

// drop removes the file, and returns cause.
func (w *written) drop(s *Store, cause error) error {
	return errors.Join(cause, s.fs.Remove(w.path))
}

// readError marks an error of the caller's reader.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

// write makes a file of all bytes of r, under a temporary name in dir, and syncs
// it. about has the headers and metadata of the record. It also has the ETag,
// unless that is computed from the bytes.
func (s *Store) write(dir, key string, about Record, r io.Reader) (*written, error) {
	s.mu.Lock()
	s.next++
	w := &written{path: path.Join(dir, fmt.Sprintf("%d%s", s.next, tempSuffix)), record: about}
	s.mu.Unlock()
	// The index keeps the record, but servers reuse the memory of a request's
	// strings.
	w.record.Key, w.record.Modified = strings.Clone(key), s.now().UnixNano()
	w.record.ETag, w.record.Headers, w.record.Meta = strings.Clone(about.ETag), cloned(about.Headers), cloned(about.Meta)
	f, err := s.fs.Open(w.path, vfs.Create|vfs.Truncate)
	if err != nil {
		return nil, s.failed("put", key, err)
	}
	if err = s.fill(f, &w.record, r); err == nil && s.skip != syncBytes {
		err = s.broken(f.Sync())
	}
	if err = errors.Join(err, f.Close()); err == nil {
		return w, nil
	}
	var theirs *readError
	if errors.As(err, &theirs) {
		return nil, w.drop(s, theirs.err)
	}
	return nil, w.drop(s, s.failed("put", key, err))
}

// cloned copies a map with its strings.
func cloned(m map[string]string) map[string]string {
	if m == nil {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[strings.Clone(k)] = strings.Clone(v)
	}
	return out
}

// fill writes the bytes and the tail of a file.
func (s *Store) fill(f vfs.File, rec *Record, r io.Reader) error {
	sum := md5.New()
	buf := make([]byte, 256<<10)
	rec.Size, rec.CRC = 0, 0
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			b := buf[:n]
			sum.Write(b) //nolint:errcheck // a hash has no errors
			rec.CRC = crc.Combine(rec.CRC, crc.Sum(b), int64(n))
			if _, err := f.WriteAt(b, rec.Size); err != nil {
				return err
			}
			rec.Size += int64(n)
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			break
		}
		if err != nil {
			return &readError{err}
		}
	}
	if rec.ETag == "" {
		rec.ETag = hex.EncodeToString(sum.Sum(nil))
	}
	tail, err := rec.tail()
	if err != nil {
		return err
	}
	_, err = f.WriteAt(tail, rec.Size)
	return err
}
