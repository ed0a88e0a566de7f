package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
)

// SilenceTicks is the number of checks per heartbeat timeout.
const SilenceTicks = silenceTicks

// TransferTo makes node the leader.
func (s *Store) TransferTo(node string) error {
	p, _ := s.cfg.peer(node)
	return s.group.raft.LeadershipTransferToServer(raft.ServerID(node), raft.ServerAddress(p.Address)).Error()
}

// CountEveryAck is the mutant of the read rule: any acknowledgement received in this term confirms.
func (s *Store) CountEveryAck() {
	a := s.transport.acks
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, p := range a.peers {
		p.tick = math.MaxUint64
		a.peers[id] = p
	}
}

// TakeSnapshot takes one now.
func (s *Store) TakeSnapshot() error { return s.group.raft.Snapshot().Error() }

// CheckSpace looks at the free space now.
func (s *Store) CheckSpace() { s.disk.checkSpace() }

var (
	EncodeMeta    = encodeMeta
	DecodeMeta    = decodeMeta
	NewMetaStore  = newMetaStore
	ScanSegment   = scanSegment
	NewStream     = newStreamReader
	DecodeSnap    = decodeSnapMeta
	DecodeID      = decodeIdentity
	DecodeCurrent = decodeCurrent
	EncodeCurrent = encodeCurrent
	ValueSum      = valueSum
	SealValue     = sealValue
	OpenValue     = openValue
)

func (m *metaStore) Open() error { return m.open() }

func (s *streamReader) Verify() error { return s.verify() }

func (s *streamReader) Extract(fsys vfs.FS, dir string) error { return s.extract(fsys, dir) }

func (e segmentEnd) End() int64      { return e.end }
func (e segmentEnd) Entries() uint64 { return e.entries }
func (e segmentEnd) Index() int64    { return e.index }

// StreamOf returns the stream of the files in dir.
func StreamOf(fsys vfs.FS, dir string, cluster moraine.UUID, applied uint64) ([]byte, error) {
	files, err := checkpointFiles(fsys, dir)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := writeStream(&out, fsys, dir, cluster, applied, files); err != nil {
		return nil, err
	}
	if int64(out.Len()) != streamSize(files) {
		return nil, corruptf("a stream of %d bytes, foretold %d", out.Len(), streamSize(files))
	}
	return out.Bytes(), nil
}

// EncodeID encodes an identity.
func EncodeID(cluster moraine.UUID, node string, formed bool) []byte {
	return identity{cluster: cluster, node: node, formed: formed, dataID: moraine.UUID{7}, admitted: formed, entered: formed}.encode()
}

// EncodeBegunID encodes the identity of a node that a forced quorum began, and that a newer
// incarnation has since outlived.
func EncodeBegunID(cluster moraine.UUID, node string) []byte {
	return identity{cluster: cluster, node: node, formed: true, dataID: moraine.UUID{7}, admitted: true, entered: true,
		incarnation: moraine.MarkedIncarnation{Number: 3, Mark: moraine.UUID{5}}, outlivedBy: 4}.encode()
}

// EncodeSnap encodes a snapshot's metadata.
func EncodeSnap(meta raft.SnapshotMeta, applied uint64) []byte {
	return (&snapshot{meta: meta, applied: applied, form: snapTaken}).encode()
}

// EncodeReceivedSnap encodes the metadata of one that another node sent.
func EncodeReceivedSnap(meta raft.SnapshotMeta, applied uint64) []byte {
	return (&snapshot{meta: meta, applied: applied, form: snapReceived}).encode()
}

// LinkCheckpoint makes the directory to with the files of a checkpoint.
func LinkCheckpoint(fsys vfs.FS, from, to string) error { return linkCheckpoint(fsys, from, to) }

// WrapPipeline wraps a pipeline as the transport does.
func WrapPipeline(inner raft.AppendPipeline) raft.AppendPipeline { return newPipeline(inner) }

// Log is a node's log by itself.
type Log struct{ *raftLog }

// OpenLog opens the log of the node's directory dir, whose segments are small.
func OpenLog(fsys vfs.FS, dir string) (Log, error) {
	cfg := Config{Dir: dir, SegmentBytes: 64 << 10}
	cfg.setDefaults()
	deps := Deps{FS: fsys}
	deps.setDefaults()
	l, err := openLog(&cfg, &deps, nil)
	return Log{l}, err
}

// Append stores entry index of a size.
func (l Log) Append(index uint64, size int) error {
	return l.StoreLog(&raft.Log{Index: index, Term: 1, Data: make([]byte, size)})
}

// Sum describes all that the log has.
func (l Log) Sum() (string, error) {
	first, err := l.FirstIndex()
	if err != nil {
		return "", err
	}
	last, err := l.LastIndex()
	if err != nil {
		return "", err
	}
	sizes := 0
	for i := first; i > 0 && i <= last; i++ {
		var entry raft.Log
		if err := l.GetLog(i, &entry); err != nil {
			return "", err
		}
		sizes += len(entry.Data)
	}
	term, err := l.GetUint64([]byte("term"))
	return fmt.Sprintf("%d to %d of %d bytes, term %d", first, last, sizes, term), err
}

// OpenSnapshots opens the snapshots of the node's directory dir, for those that
// are received.
func OpenSnapshots(fsys vfs.FS, dir string, cluster moraine.UUID) (raft.SnapshotStore, error) {
	cfg := Config{Dir: dir, Cluster: cluster}
	deps := Deps{FS: fsys}
	deps.setDefaults()
	return openSnapshots(&cfg, &deps, nil)
}

// Silence is how a follower watches its leader.
type Silence = silence

// NewSilence watches for a leader that is silent for timeout and up to half more.
func NewSilence(timeout time.Duration) *Silence { return &silence{timeout: timeout} }

// Tick is silence.tick.
func (s *silence) Tick(contact time.Time, elapsed time.Duration) bool {
	return s.tick(contact, elapsed)
}

// InstallFrom forms a directory as it is after a received snapshot, the state of a backup, that
// says it ends at index; its members are those of cfg. last is the end of a former log, with
// entries of term, which the node stopped too early to delete; 0: there is none.
func InstallFrom(cfg Config, deps Deps, backup io.ReaderAt, size int64, index, last, term uint64) error {
	cfg.setDefaults()
	deps.setDefaults()
	info, err := ReadBackup(backup, size)
	if err != nil {
		return err
	}
	return form(&cfg, &deps, identity{admitted: true, entered: true}, func(cfg *Config, deps *Deps) error {
		store, err := openSnapshots(cfg, deps, nil)
		if err != nil {
			return err
		}
		var conf raft.Configuration
		for _, p := range cfg.Peers {
			conf.Servers = append(conf.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.Address)})
		}
		sink, err := store.Create(raft.SnapshotVersionMax, index, info.Term, conf, 1, nil)
		if err != nil {
			return err
		}
		if _, err := io.Copy(sink, backupStream(backup, info)); err != nil {
			return err
		}
		if err := sink.Close(); err != nil {
			return err
		}
		log, err := openLog(cfg, deps, nil)
		if err != nil {
			return err
		}
		for i := uint64(1); i <= last && err == nil; i++ {
			err = log.StoreLogs([]*raft.Log{{Index: i, Term: term, Type: raft.LogCommand, Data: []byte("add stale")}})
		}
		return errors.Join(err, log.SetUint64([]byte("CurrentTerm"), info.Term), log.Close())
	})
}

// Greeting encodes a greeting, and DecodeGreeting reads one.
func Greeting(cluster moraine.UUID, node string, of moraine.MarkedIncarnation) []byte {
	return greeting{cluster, node, of}.encode()
}

func DecodeGreeting(p []byte) (cluster moraine.UUID, node string, of moraine.MarkedIncarnation, err error) {
	g, err := decodeGreeting(p)
	return g.cluster, g.node, g.incarnation, err
}
