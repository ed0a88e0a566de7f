package raftstore

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
)

// A directory belongs to one incarnation of the metadata permanently. Only a restore or a forced
// quorum, while no node runs, changes it. Nodes of different incarnations exchange no messages (see
// greeting.go), because their logs may have different entries with the same index and term. The
// IDENTITY of a directory has the incarnation if a restore or a forced quorum began it. Otherwise
// only the state has it. On the disk of a
// killed node the state may be far behind its log, or missing; then the log has it. A node must
// know its incarnation before its first message.

// incarnations is what this node knows of the incarnations of the metadata.
type incarnations struct {
	cfg   *Config
	deps  *Deps
	fatal *fatal

	known atomic.Pointer[moraine.MarkedIncarnation] // nil before Run has opened the directory
	// hadEntries: the log had entries when the node started. Set before the node accepts
	// connections.
	hadEntries bool
	mu         sync.Mutex // held during a change of IDENTITY by abandon
}

// current is Store.Incarnation.
func (ic *incarnations) current() moraine.MarkedIncarnation {
	if i := ic.known.Load(); i != nil {
		return *i
	}
	id, err := readIdentity(ic.deps.FS, ic.cfg.Dir)
	if err != nil {
		return moraine.MarkedIncarnation{} // Run returns the reason
	}
	return id.incarnation
}

// saw is Store.SawIncarnation.
func (ic *incarnations) saw(number moraine.Incarnation) {
	if now := ic.current(); number > now.Number {
		ic.known.Store(&moraine.MarkedIncarnation{Number: number})
	}
}

// learn is called once the state is open.
func (ic *incarnations) learn(id identity, state *stateDB, log *raftLog) error {
	known, reached := id.incarnation, uint64(0)
	if ic.deps.Incarnation != nil {
		err := state.read(func(r viewReader, applied uint64) error {
			reached = applied
			number, err := ic.deps.Incarnation(r)
			if number > known.Number {
				known = moraine.MarkedIncarnation{Number: number}
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("read the incarnation of the state: %w", err)
		}
	}
	number, err := ic.ofLog(log, reached, known.Number)
	if err != nil {
		return err
	}
	if number > known.Number { // not the one that IDENTITY marks
		known = moraine.MarkedIncarnation{Number: number}
	}
	ic.known.Store(&known)
	return nil
}

// ofLog returns the incarnation after the log's entries after reached, starting
// from number. It does not matter whether they are committed. A node with an
// entry of an incarnation belongs to it, and nodes of a newer one will report
// that. This also covers a forced quorum that stopped before it wrote IDENTITY.
func (ic *incarnations) ofLog(log *raftLog, reached uint64, number moraine.Incarnation) (moraine.Incarnation, error) {
	first, err := log.FirstIndex()
	if err != nil {
		return 0, err
	}
	last, err := log.LastIndex()
	if err != nil {
		return 0, err
	}
	ic.hadEntries = last > 0
	if ic.deps.IncarnationAfter == nil || first == 0 {
		return number, nil
	}
	for i := max(first, reached+1); i <= last; i++ {
		var entry raft.Log
		if err := log.GetLog(i, &entry); err != nil {
			return 0, fmt.Errorf("entry %d: %w", i, err)
		}
		if entry.Type == raft.LogCommand {
			number = ic.deps.IncarnationAfter(entry.Data, number)
		}
	}
	return number, nil
}

// abandon is Store.Abandon.
func (ic *incarnations) abandon(newer moraine.MarkedIncarnation, who string) error {
	ic.mu.Lock()
	defer ic.mu.Unlock()
	id, err := readIdentity(ic.deps.FS, ic.cfg.Dir)
	if err == nil && id.outlivedBy < newer.Number {
		id.outlivedBy = newer.Number
		err = replaceFile(ic.deps.FS, ic.cfg.Dir, identityFile, id.encode())
	}
	if err != nil { // it will be reported again
		ic.deps.Log.Error("could not record that the incarnation of this directory is abandoned", "err", err)
	}
	gone := outlived(ic.cfg.Node, ic.current().Number, newer.Number, who)
	ic.fatal.set(gone)
	return gone
}

// Incarnation returns the incarnation of this node's directory, as far as known; it may be called
// before Run. The number is 0 for a node without a state.
func (s *Store) Incarnation() moraine.MarkedIncarnation { return s.incarnation.current() }

// SawIncarnation records the incarnation of the state if IDENTITY has none.
func (s *Store) SawIncarnation(number moraine.Incarnation) { s.incarnation.saw(number) }

// Abandon ends a node that received a newer incarnation which outlives its own, and marks its
// directory so that it is refused from then on. who reported the incarnation. The error, which Run
// returns too, says what to do.
func (s *Store) Abandon(newer moraine.MarkedIncarnation, who string) error {
	return s.incarnation.abandon(newer, who)
}

// outlived says what to do with an outlived directory.
func outlived(node string, own, newer moraine.Incarnation, who string) error {
	return &moraine.Error{Op: "raftstore", Ref: node, Kind: moraine.Fenced, Err: fmt.Errorf(
		"%s says that the metadata is at incarnation %d, and this --data is of %d: `moraine metadata force-quorum` or `restore` began %[2]d without it. "+
			"This --data cannot take part again. Put it aside until nobody misses what is in it. Start a server in its place with --join, on an empty --data, "+
			"under an id that was never used (say %[4]sb). Name the current servers in --peers. Then run `moraine metadata add %[4]sb=HOST:PORT`. "+
			"Was %[2]d begun by mistake, or a backup restored with too low an --after-incarnation? "+
			"Then stop the servers of the unwanted incarnation, and begin again with --after-incarnation %[2]d", who, newer, own, node)}
}
