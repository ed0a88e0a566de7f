package raftstore

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
)

// Identity says to which cluster and node a directory belongs.
type Identity struct {
	Cluster moraine.UUID
	Node    string
	// DataID is the random name that the directory got when it was formed. A node that lost its
	// disk returns with another one.
	DataID moraine.UUID
	// Admitted says that the node may take part in its group: see Store.Admit. Entered says that it
	// does: see Store.Enter.
	Admitted, Entered bool
	// Incarnation is the one that a restore or a forced quorum began; its number is 0 if only the
	// state has it. OutlivedBy is the number of one that began without this directory, as reported
	// to the node; 0: none was reported.
	Incarnation moraine.MarkedIncarnation
	OutlivedBy  moraine.Incarnation
}

// ReadIdentity returns the identity of dir; NotFound if no node was formed in dir.
func ReadIdentity(fsys vfs.FS, dir string) (Identity, error) {
	id, err := readIdentity(fsys, dir)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && !id.formed) {
		return Identity{}, &moraine.Error{Op: "raftstore.ReadIdentity", Ref: dir, Kind: moraine.NotFound,
			Err: errors.New("not the directory of a metadata server")}
	}
	if err != nil {
		return Identity{}, wrap("raftstore.ReadIdentity", dir, err)
	}
	return Identity{Cluster: id.cluster, Node: id.node, DataID: id.dataID, Admitted: id.admitted, Entered: id.entered,
		Incarnation: id.incarnation, OutlivedBy: id.outlivedBy}, nil
}

// Identity returns the identity of this node's directory. It may be called
// before Run.
func (s *Store) Identity() (Identity, error) {
	return ReadIdentity(s.deps.FS, s.cfg.Dir)
}

// Admit records durably that the group, of this incarnation, knows this node's directory, so that
// the node may take part. The caller of a Store that is not admitted calls it once that is so,
// before Run. A node that lost its disk has forgotten what it acknowledged and how it voted, and
// must not take part as its former self. The Store itself does not ask the group.
func (s *Store) Admit(to moraine.MarkedIncarnation) error {
	id, err := readIdentity(s.deps.FS, s.cfg.Dir)
	if err == nil && !id.admitted {
		id.admitted = true
		if !to.Mark.IsZero() { // which no state has
			id.incarnation = to
		}
		err = replaceFile(s.deps.FS, s.cfg.Dir, identityFile, id.encode())
	}
	return wrap("raftstore.Admit", s.cfg.Dir, err)
}

// Enter records durably that an admitted node takes part from now on.
func (s *Store) Enter() error {
	id, err := readIdentity(s.deps.FS, s.cfg.Dir)
	if err == nil && !id.entered {
		id.entered = true
		err = replaceFile(s.deps.FS, s.cfg.Dir, identityFile, id.encode())
	}
	return wrap("raftstore.Enter", s.cfg.Dir, err)
}

// memberTimeout bounds how long a change of the configuration waits for acceptance; its commit has
// no bound.
const memberTimeout = 5 * time.Second

// AddMember adds the server id, at address, with a vote if voter is set. It also gives a vote to a
// member that had none, but takes none away. The change is committed when it returns nil. NotLeader
// means that nothing changed; after other errors the result is unknown, and the call may be
// repeated.
func (s *Store) AddMember(ctx context.Context, id, address string, voter bool) error {
	return s.proposals.reconfigure(ctx, "raftstore.AddMember", func() raft.Future {
		if voter {
			return s.group.raft.AddVoter(raft.ServerID(id), raft.ServerAddress(address), 0, memberTimeout)
		}
		return s.group.raft.AddNonvoter(raft.ServerID(id), raft.ServerAddress(address), 0, memberTimeout)
	})
}

// RemoveMember removes id from the group, with the errors of AddMember. The caller must consider
// the majority. It succeeds if id is no member.
func (s *Store) RemoveMember(ctx context.Context, id string) error {
	return s.proposals.reconfigure(ctx, "raftstore.RemoveMember", func() raft.Future {
		return s.group.raft.RemoveServer(raft.ServerID(id), 0, memberTimeout)
	})
}

// Transfer transfers the leadership to the voter id.
func (s *Store) Transfer(ctx context.Context, id string) error {
	return s.proposals.reconfigure(ctx, "raftstore.Transfer", func() raft.Future {
		return s.group.raft.LeadershipTransferToServer(raft.ServerID(id), s.group.address(raft.ServerID(id)))
	})
}
