package localstore

import (
	"crypto/md5"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/vfs"
)

// uploadRecord is a file of an upload without bytes. It has only the record of the
// future object.
const uploadRecord = "upload"

// Upload is an unfinished upload.
type Upload struct {
	ID     string
	Record Record
}

// Part is an uploaded part.
type Part struct {
	Number int
	Record Record
}

func (s *Store) uploadDir(id string) string { return path.Join(s.dir, uploadsDir, id) }

func partName(number int) string { return fmt.Sprintf("%05d", number) }

// NewUpload begins an upload.
func (s *Store) NewUpload(key string, about Record) (id string, err error) {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", err
	}
	id = hex.EncodeToString(random[:])
	if err := s.allows(key, Condition{}); err != nil {
		return "", err
	}
	if err := s.fs.MkdirAll(s.uploadDir(id)); err != nil {
		return "", s.failed("new upload", key, err)
	}
	defer func() {
		if err != nil { // no client knows its id
			id, err = "", errors.Join(err, s.fs.RemoveAll(s.uploadDir(id)))
		}
	}()
	about.ETag = "-"
	f, err := s.write(s.uploadDir(id), key, about, strings.NewReader(""))
	if err != nil {
		return id, err
	}
	if err := s.fs.Rename(f.path, path.Join(s.uploadDir(id), uploadRecord)); err != nil {
		return id, s.failed("new upload", key, err)
	}
	if err := s.syncDir(syncPart, s.uploadDir(id)); err != nil {
		return id, err
	}
	return id, s.syncDir(syncUpload, path.Join(s.dir, uploadsDir))
}

// findUpload returns the record of an upload to a key.
func (s *Store) findUpload(key, id string) (*Record, error) {
	gone := &moraine.Error{Op: "localstore.upload", Ref: key, Kind: moraine.NotFound, Err: fmt.Errorf("upload %q does not exist", id)}
	if raw, err := hex.DecodeString(id); err != nil || len(raw) != 16 {
		return nil, gone
	}
	r, err := s.readRecord(path.Join(s.uploadDir(id), uploadRecord))
	if errors.Is(err, fs.ErrNotExist) || err == nil && r.Key != key {
		return nil, gone
	}
	return r, s.failed("upload", key, err)
}

// PutPart stores a part, and replaces one of the same number. want is as in Put.
func (s *Store) PutPart(key, id string, number int, r io.Reader, want *uint32) (Record, error) {
	if _, err := s.findUpload(key, id); err != nil {
		return Record{}, err
	}
	if err := s.allows(key, Condition{}); err != nil {
		return Record{}, err
	}
	dir := s.uploadDir(id)
	f, err := s.write(dir, key, Record{}, r)
	if err != nil {
		return Record{}, err
	}
	if want != nil && f.record.CRC != *want {
		return Record{}, f.drop(s, badSum(key, f.record.CRC, *want))
	}
	s.changes.Lock()
	defer s.changes.Unlock()
	if _, err := s.findUpload(key, id); err != nil {
		return Record{}, err // the upload ended meanwhile, and its directory is gone
	}
	if err := s.fs.Rename(f.path, path.Join(dir, partName(number))); err != nil {
		return Record{}, f.drop(s, s.failed("put part", key, err))
	}
	return f.record, s.syncDir(syncPart, dir)
}

// Parts lists the parts of an upload, in order.
func (s *Store) Parts(key, id string) ([]Part, error) {
	if _, err := s.findUpload(key, id); err != nil {
		return nil, err
	}
	names, err := s.fs.List(s.uploadDir(id))
	if err != nil {
		return nil, s.failed("parts", key, err)
	}
	var parts []Part
	for _, name := range names {
		number, err := strconv.Atoi(name)
		if err != nil || len(name) != len(partName(0)) {
			continue
		}
		r, err := s.readRecord(path.Join(s.uploadDir(id), name))
		if err != nil {
			return nil, s.failed("parts", key, err)
		}
		parts = append(parts, Part{number, *r})
	}
	return parts, nil
}

// Uploads lists the uploads whose keys begin with prefix.
func (s *Store) Uploads(prefix string) ([]Upload, error) {
	ids, err := s.fs.List(path.Join(s.dir, uploadsDir))
	if err != nil {
		return nil, s.failed("uploads", prefix, err)
	}
	var out []Upload
	for _, id := range ids {
		r, err := s.readRecord(path.Join(s.uploadDir(id), uploadRecord))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, moraine.Corrupt) {
			continue // it is being made or ended; a damaged one cannot be completed
		}
		if err != nil {
			return nil, s.failed("uploads", prefix, err)
		}
		if strings.HasPrefix(r.Key, prefix) {
			out = append(out, Upload{id, *r})
		}
	}
	return out, nil
}

// Complete makes an object from parts, in order, and ends the upload. want is as in
// Put. It returns InvalidArgument if a part is missing or has another ETag, and
// Corrupt if the stored bytes of a part are damaged.
func (s *Store) Complete(key, id string, parts []Part, want *uint32, cond Condition) (Record, error) {
	about, err := s.findUpload(key, id)
	if err != nil {
		return Record{}, err
	}
	s.await(func(k string) bool { return k == key })
	if err := s.allows(key, cond); err != nil {
		return Record{}, err
	}
	all, came := md5.New(), uint32(0)
	joined := &joined{s: s}
	defer joined.close()
	for _, p := range parts {
		name := path.Join(s.uploadDir(id), partName(p.Number))
		r, err := s.readRecord(name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && r.ETag != p.Record.ETag {
			return Record{}, &moraine.Error{Op: "localstore.complete", Ref: key, Kind: moraine.InvalidArgument, Err: fmt.Errorf("part %d is missing or has another ETag", p.Number)}
		}
		if err != nil {
			return Record{}, s.failed("complete", key, err)
		}
		sum, err := hex.DecodeString(r.ETag)
		if err != nil {
			return Record{}, s.failed("complete", key, err)
		}
		all.Write(sum) //nolint:errcheck // a hash has no errors
		came = crc.Combine(came, r.CRC, r.Size)
		joined.parts = append(joined.parts, piece{name, r.Size})
	}
	made := *about
	made.ETag = fmt.Sprintf("%x-%d", all.Sum(nil), len(parts))
	f, err := s.write(path.Join(s.dir, objectsDir), key, made, joined)
	if err != nil {
		return Record{}, err
	}
	switch {
	case want != nil && f.record.CRC != *want:
		return Record{}, f.drop(s, badSum(key, f.record.CRC, *want))
	case f.record.CRC != came:
		return Record{}, f.drop(s, &moraine.Error{Op: "localstore.complete", Ref: key, Kind: moraine.Corrupt,
			Err: fmt.Errorf("parts have CRC32C %08x, but had %08x when uploaded: upload them again", f.record.CRC, came)})
	}
	// The object appears and the upload ends in one step. An upload that was
	// aborted or completed meanwhile makes no object, and the caller that ended it
	// relies on that.
	s.changes.Lock()
	defer s.changes.Unlock()
	if _, err := s.findUpload(key, id); err != nil {
		return Record{}, f.drop(s, err)
	}
	if err := s.publish(f, cond); err != nil {
		return Record{}, err
	}
	return f.record, s.end(key, id)
}

// Abort ends an upload. It returns NotFound if there is none.
func (s *Store) Abort(key, id string) error {
	s.changes.Lock()
	defer s.changes.Unlock()
	if _, err := s.findUpload(key, id); err != nil {
		return err
	}
	if err := s.allows(key, Condition{}); err != nil {
		return err
	}
	return s.end(key, id)
}

// end removes an upload. The caller holds changes.
func (s *Store) end(key, id string) error {
	if err := s.fs.RemoveAll(s.uploadDir(id)); err != nil {
		return s.failed("end upload", key, err)
	}
	return s.failed("end upload", key, s.syncDir(syncEnd, path.Join(s.dir, uploadsDir)))
}

// joined reads the bytes of files one after the other.
type joined struct {
	s     *Store
	parts []piece
	open  vfs.File
	at    int64
}

type piece struct {
	file string
	size int64
}

// Read implements io.Reader.
func (j *joined) Read(b []byte) (int, error) {
	for len(j.parts) > 0 && j.at == j.parts[0].size {
		j.close()
		j.parts, j.at = j.parts[1:], 0
	}
	if len(j.parts) == 0 {
		return 0, io.EOF
	}
	if j.open == nil {
		f, err := j.s.fs.Open(j.parts[0].file, vfs.Read)
		if err != nil {
			return 0, j.s.failed("complete", j.parts[0].file, err)
		}
		j.open = f
	}
	n, err := j.open.ReadAt(b[:min(int64(len(b)), j.parts[0].size-j.at)], j.at)
	j.at += int64(n)
	if err == io.EOF && n > 0 {
		err = nil
	}
	return n, err
}

func (j *joined) close() {
	if j.open != nil {
		_ = j.open.Close()
		j.open = nil
	}
}
