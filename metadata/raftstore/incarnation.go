package raftstore

import (
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
)

// A directory belongs to one incarnation of the metadata permanently. Only a restore or a forced
// quorum, while no node runs, changes it. Nodes of different incarnations exchange no messages (see
// greeting.go), because their logs may have different entries with the same index and term. The
// IDENTITY of a directory has the incarnation if a restore or a forced quorum began it. Otherwise
// only the state has it, so that earlier releases can still read the directory. On the disk of a
// killed node the state may be far behind its log, or missing; then the log has it. A node must
// know its incarnation before its first message.

// Incarnation returns the incarnation of this node's directory, as far as known; it may be called
// before Run. The number is 0 for a node without a state.
func (s *Store) Incarnation() moraine.MarkedIncarnation {
	if i := s.incarnation.Load(); i != nil {
		return *i
	}
	id, err := readIdentity(s.deps.FS, s.cfg.Dir)
	if err != nil {
		return moraine.MarkedIncarnation{} // Run returns the reason
	}
	return id.incarnation
}

// SawIncarnation records the incarnation of the state if IDENTITY has none.
func (s *Store) SawIncarnation(number moraine.Incarnation) {
	if now := s.Incarnation(); number > now.Number {
		s.incarnation.Store(&moraine.MarkedIncarnation{Number: number})
	}
}

// learnIncarnation is called once the state is open.
func (s *Store) learnIncarnation(id identity) error {
	known, reached := id.incarnation, uint64(0)
	if s.deps.Incarnation != nil {
		err := s.state.read(func(r viewReader, applied uint64) error {
			reached = applied
			number, err := s.deps.Incarnation(r)
			if number > known.Number {
				known = moraine.MarkedIncarnation{Number: number}
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("read the incarnation of the state: %w", err)
		}
	}
	number, err := s.incarnationOfLog(reached, known.Number)
	if err != nil {
		return err
	}
	if number > known.Number { // not the one that IDENTITY marks
		known = moraine.MarkedIncarnation{Number: number}
	}
	s.incarnation.Store(&known)
	return nil
}

// incarnationOfLog returns the incarnation after the log's entries after reached, starting from
// number. It does not matter whether they are committed: a node with an entry of an incarnation
// belongs to it, and nodes of a newer one will report that. This also covers a forced quorum that
// stopped before it wrote IDENTITY.
func (s *Store) incarnationOfLog(reached uint64, number moraine.Incarnation) (moraine.Incarnation, error) {
	first, err := s.log.FirstIndex()
	if err != nil {
		return 0, err
	}
	last, err := s.log.LastIndex()
	if err != nil {
		return 0, err
	}
	s.hadEntries = last > 0
	if s.deps.IncarnationAfter == nil || first == 0 {
		return number, nil
	}
	for i := max(first, reached+1); i <= last; i++ {
		var entry raft.Log
		if err := s.log.GetLog(i, &entry); err != nil {
			return 0, fmt.Errorf("entry %d: %w", i, err)
		}
		if entry.Type == raft.LogCommand {
			number = s.deps.IncarnationAfter(entry.Data, number)
		}
	}
	return number, nil
}

// GiveUp ends a node that received a newer incarnation which outlives its own, and marks its
// directory so that it is refused from then on. who reported the incarnation. The error, which Run
// returns too, says what to do.
func (s *Store) GiveUp(newer moraine.MarkedIncarnation, who string) error {
	s.givingUp.Lock()
	defer s.givingUp.Unlock()
	id, err := readIdentity(s.deps.FS, s.cfg.Dir)
	if err == nil && id.outlivedBy < newer.Number {
		id.outlivedBy = newer.Number
		err = replaceFile(s.deps.FS, s.cfg.Dir, identityFile, id.encode())
	}
	if err != nil { // it will be reported again
		s.deps.Log.Error("could not note that this directory was given up", "err", err)
	}
	gone := outlived(s.cfg.Node, s.Incarnation().Number, newer.Number, who)
	s.fatal.set(gone)
	return gone
}

// outlived says what to do with an outlived directory.
func outlived(node string, own, newer moraine.Incarnation, who string) error {
	return &moraine.Error{Op: "raftstore", Ref: node, Kind: moraine.Fenced, Err: fmt.Errorf(
		"%s says that the metadata is at incarnation %d, and this --data is of %d: `moraine metadata force-quorum` or `restore` began %[2]d without it. "+
			"What it has counts no more, and it takes no part again. Put it aside until nobody misses what is in it, and start a server in its place on an empty --data, "+
			"under an id that was never used (say %[4]sb), with --join and the servers of now in --peers; then `moraine metadata add %[4]sb=HOST:PORT`. "+
			"Where it was %[2]d that was begun by mistake, or a backup was restored with too low an --after-incarnation, "+
			"end the servers of the one that is not wanted, and begin again with --after-incarnation %[2]d", who, newer, own, node)}
}
