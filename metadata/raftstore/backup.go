package raftstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash"
	"hash/crc32"
	"io"
	"time"

	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
)

// A backup is a file with a snapshot of the state and everything needed to start a group with it.
// docs/formats/snapshot.md describes it.
const (
	backupMagic   = "MRNBKUP1"
	backupVersion = 1
	backupHeader  = envelopeHeader + backupBody + 4
	backupBody    = 16 + 8 + 8 + 8 + 8 + 8 + 8
	backupEnd     = "MRNBKEND"
	backupTrailer = 8 + 4
)

// BackupInfo describes a backup.
type BackupInfo struct {
	Cluster     moraine.UUID
	Incarnation uint64 // of the metadata
	// Applied is at least the index of the last entry in it. Term is not below that entry's term.
	Applied, Term uint64
	Taken         time.Time
	// Horizon is how long the cluster kept dead chunks for backups; 0: not at all.
	Horizon time.Duration
	// Bytes is the length of the stream.
	Bytes int64
}

// Snapshot takes a snapshot of the present state and opens its stream, which the caller must close.
// It fails if the node does not run.
func (s *Store) Snapshot(ctx context.Context) (BackupInfo, io.ReadCloser, error) {
	const op = "raftstore.Snapshot"
	r := s.group.started.Load()
	if r == nil {
		return BackupInfo{}, nil, s.fatal.stopped(op)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Snapshot().Error() }()
	select {
	case err := <-ended:
		if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			return BackupInfo{}, nil, wrap(op, s.cfg.Node, err)
		}
	case <-ctx.Done():
		return BackupInfo{}, nil, contextError(op, ctx)
	}
	snap := s.snapshots.newest()
	if snap == nil {
		return BackupInfo{}, nil, &moraine.Error{Op: op, Kind: moraine.Unavailable, Err: errors.New("there is nothing to snapshot yet")}
	}
	meta, stream, err := s.snapshots.Open(snap.meta.ID)
	if err != nil {
		return BackupInfo{}, nil, wrap(op, s.cfg.Node, err)
	}
	return BackupInfo{Cluster: s.cfg.Cluster, Applied: snap.applied, Term: r.CurrentTerm(), Bytes: meta.Size}, stream, nil
}

func (i BackupInfo) encode() []byte {
	le := binary.LittleEndian
	body := append([]byte(nil), i.Cluster[:]...)
	for _, v := range []uint64{i.Incarnation, i.Applied, i.Term, uint64(i.Taken.UnixNano()), uint64(i.Horizon), uint64(i.Bytes)} {
		body = le.AppendUint64(body, v)
	}
	return seal(backupMagic, backupVersion, body)
}

// BackupWriter writes a backup file: the header, then the info.Bytes of stream passed to Write,
// then, in Close, the end.
type BackupWriter struct {
	w    io.Writer
	sum  hash.Hash32
	left int64
}

// NewBackupWriter writes the header.
func NewBackupWriter(w io.Writer, info BackupInfo) (*BackupWriter, error) {
	b := &BackupWriter{w: w, sum: crc32.New(castagnoli), left: info.Bytes}
	return b, b.write(info.encode())
}

func (b *BackupWriter) write(p []byte) error {
	b.sum.Write(p) // never fails
	_, err := b.w.Write(p)
	return err
}

// Write implements io.Writer.
func (b *BackupWriter) Write(p []byte) (int, error) {
	b.left -= int64(len(p))
	if b.left < 0 {
		return 0, corruptf("the snapshot is longer than it said")
	}
	return len(p), b.write(p)
}

// Close writes the end. It does not close the underlying writer.
func (b *BackupWriter) Close() error {
	if b.left != 0 {
		return corruptf("the snapshot ended %d bytes early", b.left)
	}
	if err := b.write([]byte(backupEnd)); err != nil {
		return err
	}
	_, err := b.w.Write(binary.LittleEndian.AppendUint32(nil, b.sum.Sum32()))
	return err
}

// ReadBackup reads a backup's header and checks all of its size bytes. A missing or wrong byte is
// Corrupt.
func ReadBackup(r io.ReaderAt, size int64) (BackupInfo, error) {
	info, err := backupInfo(r, size)
	if err != nil {
		return info, wrap("raftstore.ReadBackup", "", err)
	}
	sum := crc32.New(castagnoli)
	if _, err := io.Copy(sum, io.NewSectionReader(r, 0, size-4)); err != nil {
		return info, wrap("raftstore.ReadBackup", "", err)
	}
	var end [backupTrailer]byte
	if _, err := r.ReadAt(end[:], size-backupTrailer); err != nil && err != io.EOF {
		return info, wrap("raftstore.ReadBackup", "", err)
	}
	if string(end[:8]) != backupEnd || binary.LittleEndian.Uint32(end[8:]) != sum.Sum32() {
		return info, wrap("raftstore.ReadBackup", "", corruptf("the backup's checksum is wrong: it is damaged"))
	}
	stream, err := newStreamReader(backupStream(r, info), info.Cluster)
	if err == nil {
		err = stream.verify()
	}
	return info, wrap("raftstore.ReadBackup", "", err)
}

func backupStream(r io.ReaderAt, info BackupInfo) *io.SectionReader {
	return io.NewSectionReader(r, backupHeader, info.Bytes)
}

func backupInfo(r io.ReaderAt, size int64) (BackupInfo, error) {
	if size < backupHeader+backupTrailer {
		return BackupInfo{}, corruptf("%d bytes are no backup", size)
	}
	head := make([]byte, backupHeader)
	if _, err := r.ReadAt(head, 0); err != nil {
		return BackupInfo{}, err
	}
	if !bytes.HasPrefix(head, []byte(backupMagic)) {
		return BackupInfo{}, corruptf("it does not begin as a backup of the metadata: it is another file, or damaged")
	}
	body, err := unseal(backupMagic, backupVersion, head)
	if err != nil {
		return BackupInfo{}, err
	}
	d := reader{p: body}
	var info BackupInfo
	copy(info.Cluster[:], d.take(16))
	info.Incarnation, info.Applied, info.Term = d.u64(), d.u64(), d.u64()
	info.Taken, info.Horizon, info.Bytes = time.Unix(0, int64(d.u64())), time.Duration(d.u64()), int64(d.u64())
	if !d.done() {
		return info, corruptf("the backup's header does not parse")
	}
	if want := backupHeader + info.Bytes + backupTrailer; want != size {
		return info, corruptf("the backup has %d bytes, and should have %d: it was cut short, or is damaged", size, want)
	}
	return info, nil
}
