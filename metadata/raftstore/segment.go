package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"

	"github.com/morainefs/moraine/internal/vfs"
)

// The layout of a raft-wal segment, as far as recovery needs it. A header of 32
// bytes, then frames {type, 3 zero bytes, length or CRC}, padded to 8 bytes. A
// commit frame ends each append; its CRC covers the bytes since the previous
// one.
const (
	segmentHeader = 32
	frameHeader   = 8
	frameEntry    = 1
	frameIndex    = 2
	frameCommit   = 3
)

// segmentEnd is the result of scanSegment.
type segmentEnd struct {
	end     int64  // the byte after the last complete append
	entries uint64 // entries up to there
	index   int64  // where the index of a sealed segment begins; 0: not sealed
}

// scanSegment finds the end of the last complete append. What follows was never acknowledged. A
// damaged append before a complete one is not a torn write but Corrupt: acknowledged entries are
// lost.
func scanSegment(p []byte) (segmentEnd, error) {
	var good, cur segmentEnd
	cur.end = segmentHeader
	from := int64(0) // where the range of the next commit frame's CRC begins
	torn := false
	for {
		at := cur.end
		if at+frameHeader > int64(len(p)) {
			return good, nil
		}
		length := int64(binary.LittleEndian.Uint32(p[at+4:]))
		switch p[at] {
		case frameEntry:
			cur.entries++
		case frameIndex:
			cur.index = at + frameHeader
		case frameCommit:
			whole := crc32.Checksum(p[from:at], castagnoli) == uint32(length)
			length = 0
			cur.end = at + frameHeader
			from = cur.end
			switch {
			case whole && torn:
				return good, corruptf("the append that ends at %d is damaged, the next is whole", good.end)
			case whole:
				good = cur
			}
			torn = !whole
			continue
		default:
			return good, nil
		}
		cur.end = at + frameHeader + (length+7)&^7
	}
}

// recoverLog prepares the log for raft-wal after any kind of stop. It does what raft-wal v0.4.1
// does not do:
//
//   - It reads the tail to its last complete append and zeroes all that follows. raft-wal only
//     moves its write position back. After a second power cut, remaining bytes of a torn append
//     could be taken for frames.
//   - It syncs the tail: entries that a killed process had written but not synced are read back,
//     and count as stored from then on.
//   - It marks a segment as sealed in the metadata if it was sealed without that, and adds a new
//     tail. Otherwise raft-wal would open it as the tail and then refuse every append.
func recoverLog(fsys vfs.FS, dir string, meta *metaStore, now time.Time) error {
	state, err := meta.Load(dir)
	if err != nil || len(state.Segments) == 0 {
		return err
	}
	tail := &state.Segments[len(state.Segments)-1]
	if !tail.SealTime.IsZero() {
		return nil
	}
	end, err := repairTail(fsys, dir, *tail)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // in the metadata but not made yet: raft-wal makes it
	}
	if err != nil || end.index == 0 {
		return err
	}
	tail.IndexStart = uint64(end.index)
	tail.MaxIndex = tail.BaseIndex + end.entries - 1
	tail.SealTime = now
	state.Segments = append(state.Segments, types.SegmentInfo{
		ID: state.NextSegmentID, BaseIndex: tail.MaxIndex + 1, MinIndex: tail.MaxIndex + 1,
		Codec: tail.Codec, CreateTime: now, SizeLimit: tail.SizeLimit,
	})
	state.NextSegmentID++
	return meta.CommitState(state)
}

// repairTail cuts the tail after its last complete append.
func repairTail(fsys vfs.FS, dir string, tail types.SegmentInfo) (end segmentEnd, err error) {
	f, err := fsys.Open(filepath.Join(dir, segment.FileName(tail)), vfs.Write)
	if err != nil {
		return end, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return end, err
	}
	p := make([]byte, size)
	if n, err := f.ReadAt(p, 0); err != nil && !(err == io.EOF && n == len(p)) {
		return end, err
	}
	end, err = scanSegment(p)
	if err != nil {
		return end, fmt.Errorf("log segment %s: %w", f.Name(), err)
	}
	if !allZero(p[end.end:]) {
		if err := f.Truncate(end.end); err != nil {
			return end, err
		}
		if err := f.Allocate(end.end, size-end.end); err != nil {
			return end, err
		}
	}
	// Its name is durable: metaStore.open has synced the directory since the process that made it
	// ended.
	return end, f.Sync()
}

func allZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

// walFS is the file system that raft-wal uses.
type walFS struct {
	fs vfs.FS
	// failed is why a segment could not be made. raft-wal makes the next one in the background, and
	// at the following append only reports that the previous one is sealed.
	failed *atomic.Pointer[error]
}

var _ types.VFS = walFS{}

func (w walFS) ListDir(dir string) ([]string, error) { return w.fs.List(dir) }

func (w walFS) Create(dir, name string, size uint64) (types.WritableFile, error) {
	f, err := w.create(dir, name, size)
	if err != nil {
		w.failed.Store(&err)
		return nil, err
	}
	return f, nil
}

func (w walFS) create(dir, name string, size uint64) (*walFile, error) {
	f, err := w.fs.Open(filepath.Join(dir, name), vfs.Create|vfs.Exclusive)
	if err != nil {
		return nil, err
	}
	if err := f.Allocate(0, int64(size)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &walFile{File: f, fs: w.fs, dir: dir, fresh: true}, nil
}

// Delete does not sync the directory. The metadata no longer lists the file, and raft-wal removes
// unlisted files when it opens.
func (w walFS) Delete(dir, name string) error {
	if err := w.fs.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (w walFS) OpenReader(dir, name string) (types.ReadableFile, error) {
	return w.fs.Open(filepath.Join(dir, name), vfs.Read)
}

func (w walFS) OpenWriter(dir, name string) (types.WritableFile, error) {
	f, err := w.fs.Open(filepath.Join(dir, name), vfs.Write)
	if err != nil {
		return nil, err
	}
	return &walFile{File: f, fs: w.fs, dir: dir}, nil
}

// walFile makes a new file's name durable with its first synced bytes. raft-wal syncs from one
// goroutine.
type walFile struct {
	vfs.File
	fs    vfs.FS
	dir   string
	fresh bool
}

func (f *walFile) Sync() error {
	if err := f.File.Sync(); err != nil {
		return err
	}
	if !f.fresh {
		return nil
	}
	if err := f.fs.SyncDir(f.dir); err != nil {
		return err
	}
	f.fresh = false
	return nil
}
