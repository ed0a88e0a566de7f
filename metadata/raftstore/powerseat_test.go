package raftstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
)

// offline is a change of a directory on which no node runs.
type offline struct {
	do    func(fs vfs.FS) error
	there func(fs vfs.FS) error // nil where what was done is there
}

// offlineNeedNot are syncs that a cut right after the answer need not show as
// missing, by change and site, with why.
func offlineNeedNot(change, site string) string {
	switch {
	case strings.Contains(site, "marker."):
		return emptyFile
	case strings.Contains(site, "/state/db-N"):
		return "the state is laid out to see how far it goes, and removed"
	case strings.HasSuffix(site, "by metaStore.open"), strings.HasSuffix(site, "by openSnapshots"), strings.HasSuffix(site, "by repairTail"),
		site == "sync /node/log/META.new by metaStore.commit" && change != "bootstrap" && change != "restore":
		return "TestEverySyncMatters has it: it keeps what a process before did"
	case strings.HasPrefix(site, "syncdir /node/log by ") && change != "force":
		return "the term, which META has, and the first append to a new segment each sync the same directory"
	}
	return ""
}

// TestPowerCutsAfterOfflineChanges cuts the power right after a change of a directory was answered:
// the change persists. Each of its syncs is necessary.
func TestPowerCutsAfterOfflineChanges(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.bootstrap()
	g.startAll()
	g.propose("set a 1")
	p := backupOf(t, g.leader())
	g.stopAll()
	formed := g.fs["m1"].(*vfs.Mem).Crash(rand.New(rand.NewPCG(1, 1)))
	fresh := vfs.NewMem(9)
	require.NoError(t, raftstore.Bootstrap(g.config("m1"), raftstore.Deps{FS: fresh}))
	fresh = fresh.Crash(rand.New(rand.NewPCG(1, 2)))
	store := func(fs vfs.FS) *raftstore.Store {
		deps := g.deps("m1")
		deps.FS, deps.Stream = fs, g.net.node("m1")
		s, err := raftstore.New(g.config("m1"), deps)
		require.NoError(t, err)
		return s
	}
	identity := func(is func(raftstore.Identity) bool) func(vfs.FS) error {
		return func(fs vfs.FS) error {
			id, err := raftstore.ReadIdentity(fs, "/node")
			if err == nil && !is(id) {
				err = fmt.Errorf("it is %+v", id)
			}
			return err
		}
	}
	newer := moraine.MarkedIncarnation{Number: 4, Mark: moraine.UUID{4}}
	begun := identity(func(id raftstore.Identity) bool { return id.Incarnation == begin("").Incarnation && id.Entered })
	for name, c := range map[string]struct {
		offline
		on *vfs.Mem
	}{
		"bootstrap": {on: vfs.NewMem(3), offline: offline{
			do: func(fs vfs.FS) error { return raftstore.Bootstrap(g.config("m1"), raftstore.Deps{FS: fs}) },
			there: func(fs vfs.FS) error {
				return errors.Join(identity(func(id raftstore.Identity) bool { return !id.Admitted })(fs), lastIs(fs, "configuration", ""))
			}}},
		"admit": {on: fresh, offline: offline{do: func(fs vfs.FS) error { return store(fs).Admit(newer) },
			there: identity(func(id raftstore.Identity) bool { return id.Admitted && id.Incarnation == newer })}},
		"enter": {on: fresh, offline: offline{do: func(fs vfs.FS) error { return store(fs).Enter() },
			there: identity(func(id raftstore.Identity) bool { return id.Entered })}},
		"give up": {on: formed, offline: offline{
			do:    func(fs vfs.FS) error { store(fs).Abandon(newer, "m9"); return nil }, //nolint:errcheck // it always fails
			there: identity(func(id raftstore.Identity) bool { return id.OutlivedBy == newer.Number })}},
		"force": {on: formed, offline: offline{
			do: func(fs vfs.FS) error {
				_, err := raftstore.ForceAlone(g.config("m1"), raftstore.Deps{FS: fs}, begin("set first entry"))
				return err
			},
			there: func(fs vfs.FS) error { return errors.Join(begun(fs), lastIs(fs, "command", "set first entry")) }}},
		"restore": {on: vfs.NewMem(4), offline: offline{
			do: func(fs vfs.FS) error {
				_, err := raftstore.Restore(g.config("m1"), raftstore.Deps{FS: fs}, bytes.NewReader(p), int64(len(p)), begin("set first entry"))
				return err
			},
			there: func(fs vfs.FS) error {
				return errors.Join(begun(fs), lastIs(fs, "command", "set first entry"), raftstore.InspectSnapshots(fs, "/node", func(s raftstore.SnapshotInfo) error { return s.Damage }))
			}}},
	} {
		t.Run(name, func(t *testing.T) {
			var met siteCounts
			cut := func(seed uint64, rule vfs.Rule) error {
				mem := c.on.Clone()
				if err := c.do(vfs.NewFault(mem, rule)); err != nil {
					return err
				}
				return c.there(mem.Crash(rand.New(rand.NewPCG(seed, 1))))
			}
			for seed := range uint64(10) {
				require.NoError(t, cut(seed, func(op vfs.Op) error {
					if s := site(op); s != "" {
						met.add(s)
					}
					return nil
				}), "seed %d", seed)
			}
			for _, s := range met.sorted() {
				if offlineNeedNot(name, s) != "" {
					continue
				}
				caught := false
				for seed := uint64(0); seed < 60 && !caught; seed++ {
					caught = cut(seed, func(op vfs.Op) error {
						if site(op) == s {
							return vfs.Drop
						}
						return nil
					}) != nil
				}
				require.True(t, caught, "no cut showed that %q was left out", s)
			}
		})
	}
}

// lastIs is whether the log ends with this entry, in a term that the node has begun.
func lastIs(fs vfs.FS, kind, data string) error {
	l, err := raftstore.OpenLog(fs, "/node")
	if err != nil {
		return err
	}
	term, err := l.GetUint64([]byte("CurrentTerm"))
	if err := errors.Join(err, l.Close()); err != nil {
		return err
	}
	var last raftstore.EntryInfo
	err = raftstore.InspectLog(fs, "/node", func(e raftstore.EntryInfo) error {
		last = e
		return e.Damage
	})
	if err == nil && (last.Kind != kind || string(last.Data) != data || last.Term > term) {
		err = fmt.Errorf("the log ends with %+v, in term %d", last, term)
	}
	return err
}
