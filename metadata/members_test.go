package metadata_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// growable is a raftCluster of three servers with exchangeable disks, to which servers may be
// added.
type growable struct {
	*raftCluster
	disk map[string]vfs.FS
	ops  transport.Dialer
	user *caller
	made int
}

func newGrowable(t *testing.T) *growable {
	g := &growable{disk: map[string]vfs.FS{}}
	for i := range 3 {
		g.disk[fmt.Sprintf("m%d", i+1)] = vfs.NewMem(uint64(i))
	}
	g.raftCluster = newRaftClusterOn(t, 3, func(name string) (vfs.FS, string) { return g.disk[name], "/node" })
	g.ops = g.net.Dialer(transport.Peer{Cluster: clusterUUID, Role: transport.RoleAdmin, Node: "ops"})
	g.leader()
	g.user = g.caller("c1")
	g.user.open()
	g.mkdirs(10)
	g.seated("m1", "m2", "m3") // two of them may lead before the third was admitted
	return g
}

// mkdirs makes n more directories; each must be acknowledged.
func (g *growable) mkdirs(n int) {
	g.t.Helper()
	for range n {
		_, err := g.user.mutate(mkdir(root, fmt.Sprintf("d%04d", g.made)))
		require.NoError(g.t, err)
		g.made++
	}
}

// allThere fails unless every acknowledged directory exists.
func (g *growable) allThere() {
	g.t.Helper()
	req := &wire.MetaRequest{Session: g.user.session, Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: root, Limit: 1000}}}
	resp, err := g.user.do(req)
	require.NoError(g.t, err)
	require.Len(g.t, resp.GetReadDir().Entries, g.made)
}

// join forms a server that will be added, and starts it.
func (g *growable) join(name string) {
	g.t.Helper()
	g.disk[name] = vfs.NewMem(99)
	g.names = append(g.names, name)
	g.joins[name] = true
	require.NoError(g.t, raftstore.Join(g.raftConfig(name), raftstore.Deps{FS: g.disk[name]}))
	g.start(name)
}

// mayEnd says that the server's Run may fail from its next start on.
func (g *growable) mayEnd(name string) { g.ends[name] = make(chan error, 4) }

// refused waits until a server has ended by itself, and returns why.
func (g *growable) refused(name string) error {
	g.t.Helper()
	select {
	case err := <-g.ends[name]:
		return err
	case <-time.After(30 * time.Second):
		g.t.Fatalf("%s goes on", name)
		return nil
	}
}

// ask sends a request once, as an administrator, to the server at.
func (g *growable) ask(at string, req *wire.MetaRequest) (*wire.MembersReply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	resp, err := g.ops.Metadata([]string{memnet.Address(at)}).Do(ctx, req)
	return resp.GetMembers(), err
}

// insist repeats a request until a leader answers it. Refusals fail the test.
func (g *growable) insist(req *wire.MetaRequest) *wire.MembersReply {
	g.t.Helper()
	reply, err := g.answer(req)
	require.NoError(g.t, err)
	return reply
}

// refusal repeats a request until a leader refuses it, and returns the error.
func (g *growable) refusal(req *wire.MetaRequest) error {
	g.t.Helper()
	_, err := g.answer(req)
	require.Error(g.t, err)
	return err
}

// remove removes a server. A leader without answers from enough other servers, after a change of
// leader or of a server that was away, refuses until it has them.
func (g *growable) remove(id string) {
	g.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, err := g.answer(removeReq(id))
		if err == nil {
			return
		}
		require.ErrorIs(g.t, err, moraine.Conflict)
		require.True(g.t, time.Now().Before(deadline), "never removed: %v", err)
	}
}

// answer repeats a request until a leader answers or refuses it.
func (g *growable) answer(req *wire.MetaRequest) (*wire.MembersReply, error) {
	g.t.Helper()
	var last error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		reply, err := g.ask(g.leader(), req)
		if err == nil {
			return reply, nil
		}
		switch last = err; moraine.KindOf(err) {
		case moraine.NotLeader, moraine.Unavailable, moraine.Timeout:
		default:
			return nil, err
		}
	}
	g.t.Fatalf("never answered: %v", last)
	return nil, nil
}

func addReq(id string) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_AddMember{AddMember: &wire.AddMember{Id: id, Address: memnet.Address(id)}}}
}

func removeReq(id string) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_RemoveMember{RemoveMember: &wire.RemoveMember{Id: id}}}
}

func membersReq() *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_GetMembers{GetMembers: &wire.GetMembers{}}}
}

func voters(reply *wire.MembersReply) []string {
	var out []string
	for _, m := range reply.GetMembers() {
		if m.Voter {
			out = append(out, m.Id)
		}
	}
	return out
}

// votersBecome waits until the voters are these.
func (g *growable) votersBecome(want ...string) {
	g.t.Helper()
	var have []string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if have = voters(g.insist(membersReq())); slices.Equal(have, want) {
			return
		}
	}
	g.t.Fatalf("voters %v, want %v", have, want)
}

// TestReplaceFaults adds a server and removes another, with a fault in between. The operator
// repeats unanswered requests. In the end the members are as requested, everything acknowledged
// before, meanwhile and after exists, and the removed server has stopped.
func TestReplaceFaults(t *testing.T) {
	follower := func(g *growable) string {
		for _, name := range []string{"m1", "m2", "m3"} {
			if name != g.leader() {
				return name
			}
		}
		return ""
	}
	for name, fault := range map[string]struct {
		leader bool // the leader is removed
		adding func(g *growable)
		added  func(g *growable)
		remove func(g *growable, old string)
	}{
		"nothing":                     {},
		"the leader is removed":       {leader: true},
		"the answers are lost":        {adding: func(g *growable) { g.loseOne(addReq("m4")) }, remove: func(g *growable, old string) { g.loseOne(removeReq(old)) }},
		"the leader ends when added":  {added: func(g *growable) { g.restart(g.leader()) }},
		"the new one ends when added": {added: func(g *growable) { g.restart("m4") }},
		"the new one starts late": {adding: func(g *growable) {
			g.stop("m4")
			g.insist(addReq("m4"))
			require.NotContains(g.t, voters(g.insist(membersReq())), "m4", "a server that does not answer has no vote")
			g.start("m4")
		}},
		"the leader ends when it removes": {remove: func(g *growable, old string) {
			lead := g.anotherLeads(old)    // not waiting for its end
			go g.ask(lead, removeReq(old)) //nolint:errcheck // it may be answered or not
			g.restart(lead)
		}},
		"the removed one is cut off": {remove: func(g *growable, old string) {
			g.net.Isolate(old)
			g.remove(old)
			g.net.Rejoin(old, "*")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGrowable(t)
			old := follower(g)
			if fault.leader {
				old = g.leader()
			}
			g.mayEnd(old)
			g.restart(old) // so that the test sees its end
			if fault.leader {
				g.lead(old)
			}
			g.join("m4")
			if fault.adding != nil {
				fault.adding(g)
			}
			g.insist(addReq("m4"))
			if fault.added != nil {
				fault.added(g)
			}
			g.mkdirs(5)
			four := []string{"m1", "m2", "m3", "m4"}
			g.votersBecome(four...)
			if fault.remove != nil {
				fault.remove(g, old)
			}
			g.mkdirs(5)
			g.remove(old)
			g.votersBecome(slices.DeleteFunc(four, func(id string) bool { return id == old })...)
			require.ErrorIs(t, g.refused(old), moraine.Fenced)
			g.stop(old)
			g.names = slices.DeleteFunc(g.names, func(n string) bool { return n == old })
			g.mkdirs(5)
			g.allThere()
			require.ErrorIs(t, g.refusal(addReq(old)), moraine.Exists, "an id is good for one directory")
		})
	}
}

// Reports of servers that are no members, however many, do not keep the leader from receiving one
// that will be added.
func TestStrangersDoNotDrownANewMember(t *testing.T) {
	g := newGrowable(t)
	for i := range 80 {
		id := fmt.Sprintf("stranger%d", i)
		dial := g.net.Dialer(transport.Peer{Cluster: clusterUUID, Role: transport.RoleMetadata, Node: id})
		beat := &wire.MetaRequest{Op: &wire.MetaRequest_MemberBeat{MemberBeat: &wire.MemberBeat{
			Id: id, DataId: bytes.Repeat([]byte{byte(i + 1)}, 16), Status: &wire.MemberStatus{Level: moraine.FeatureLevel}}}}
		require.Eventually(t, func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			resp, err := dial.Metadata([]string{memnet.Address(g.leader())}).Do(ctx, beat)
			return err == nil && resp.GetMemberBeat().Accepted
		}, 30*time.Second, 10*time.Millisecond)
	}
	g.join("m4")
	g.insist(addReq("m4"))
	g.votersBecome("m1", "m2", "m3", "m4")
	g.allThere()
}

// restart stops a server and starts it again. An error of its Run meanwhile is not the one that
// refused returns.
func (g *growable) restart(name string) {
	g.t.Helper()
	g.stop(name)
	select {
	case <-g.ends[name]:
	default: // mayEnd was not called for it
	}
	g.start(name)
}

// lead restarts the leader until the named server leads. Another may lead by the time that lead
// returns.
func (g *growable) lead(name string) {
	g.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		at := g.leader()
		if at == name {
			return
		}
		require.True(g.t, time.Now().Before(deadline), "%s never leads", name)
		g.restart(at)
	}
}

// anotherLeads restarts the named server for as long as it leads, and returns the other leader.
func (g *growable) anotherLeads(name string) string {
	g.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		at := g.leader()
		if at != name {
			return at
		}
		require.True(g.t, time.Now().Before(deadline), "nobody but %s leads", name)
		g.restart(at)
	}
}

// loseOne sends a request to the leader and loses the answer.
func (g *growable) loseOne(req *wire.MetaRequest) {
	g.t.Helper()
	set := func(f memnet.Faults) { g.net.SetFaults("ops", "*", f); g.net.SetFaults("*", "ops", f) }
	set(memnet.Faults{LoseReply: 1})
	_, err := g.ask(g.leader(), req)
	set(memnet.Faults{})
	require.Error(g.t, err)
}

// A server that returns with an empty disk under its old ID does not take part: neither if the
// others lead, nor if a lagging one needs its vote.
func TestAWipedServerIsRefused(t *testing.T) {
	g := newGrowable(t)
	g.votersBecome("m1", "m2", "m3")
	g.seated("m1", "m2", "m3")
	behind, wiped := "m1", "m2"
	if g.leader() == behind {
		behind = "m3"
	}
	if g.leader() == wiped {
		wiped = "m3"
	}
	g.stop(behind)
	g.mkdirs(5)
	rest := slices.DeleteFunc([]string{"m1", "m2", "m3"}, func(n string) bool { return n == behind || n == wiped })[0]
	g.stop(wiped)
	g.stop(rest)
	for _, form := range []struct {
		name string
		with func(raftstore.Config, raftstore.Deps) error
		join bool
	}{{"bootstrap", raftstore.Bootstrap, false}, {"join", raftstore.Join, true}} {
		g.disk[wiped] = vfs.NewMem(7)
		require.NoError(t, form.with(g.raftConfig(wiped), raftstore.Deps{FS: g.disk[wiped]}))
		g.joins[wiped] = form.join
		g.mayEnd(wiped)
		g.start(behind)
		g.start(wiped)
		// These two would be a majority without the last five directories. The sleep waits for
		// something that must not happen: on a busy machine the test shows less, but does not fail
		// sooner.
		time.Sleep(1500 * time.Millisecond)
		require.False(t, g.servers[behind].Status().Leading || g.servers[wiped].Status().Leading, "%s: a majority without what was acknowledged", form.name)
		g.start(rest)
		err := g.refused(wiped)
		require.ErrorIs(t, err, moraine.Fenced)
		require.Contains(t, err.Error(), "moraine metadata replace "+wiped)
		g.stop(wiped)
		g.allThere()
		g.stop(behind)
		g.stop(rest)
	}
}

// seated waits until the state knows the directories of these servers.
func (g *growable) seated(names ...string) {
	g.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		n := 0
		for _, m := range g.insist(membersReq()).Members {
			if m.Seated && slices.Contains(names, m.Id) {
				n++
			}
		}
		if n == len(names) {
			return
		}
	}
	g.t.Fatal("directories are not recorded")
}

// A removal that would leave no majority is refused with the reason.
func TestRemoveKeepsAMajority(t *testing.T) {
	g := newGrowable(t)
	g.votersBecome("m1", "m2", "m3")
	lead := g.leader()
	others := slices.DeleteFunc([]string{"m1", "m2", "m3"}, func(n string) bool { return n == lead })
	g.stop(others[0])
	require.Eventually(t, func() bool {
		for _, m := range g.insist(membersReq()).Members {
			if m.Id == others[0] {
				return !m.Alive
			}
		}
		return false
	}, 30*time.Second, 50*time.Millisecond)
	for _, id := range []string{others[1], lead} { // the two that remain
		err := g.refusal(removeReq(id))
		require.ErrorIs(t, err, moraine.Conflict, id)
		require.True(t, strings.Contains(err.Error(), "start "+others[0]), err.Error())
	}
	require.ErrorIs(t, g.refusal(removeReq("m9")), moraine.NotFound)
	for _, bad := range []string{"", "nowhere", "::bad::", "host:", "host:0", "host:70000", ":7400"} {
		req := &wire.MetaRequest{Op: &wire.MetaRequest_AddMember{AddMember: &wire.AddMember{Id: "m4", Address: bad}}}
		require.ErrorIs(t, g.refusal(req), moraine.InvalidArgument)
	}
	g.insist(removeReq(others[0])) // the dead one may be removed
	g.votersBecome(slices.DeleteFunc([]string{"m1", "m2", "m3"}, func(n string) bool { return n == others[0] })...)
	g.allThere()
}

// A backup is read while the cluster continues and pieces are lost on the way. It begins another
// incarnation: its content exists, sessions of before are refused, and other servers can be added.
func TestBackupBeginsAnotherIncarnation(t *testing.T) {
	g := newGrowable(t)
	g.votersBecome("m1", "m2", "m3")
	at := g.made
	var lost *wire.WatchReply
	var out bytes.Buffer
	var w *raftstore.BackupWriter
	for id, offset := uint64(0), uint64(0); ; {
		req := &wire.MetaRequest{Op: &wire.MetaRequest_ReadBackup{ReadBackup: &wire.ReadBackup{Backup: id, Offset: offset}}}
		var r *wire.ReadBackupReply
		for range 2 { // the answer of each piece is lost once
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			resp, err := g.ops.Metadata([]string{memnet.Address(g.leader())}).Do(ctx, req)
			cancel()
			require.NoError(t, err)
			if r != nil && id != 0 {
				require.Equal(t, r.Data, resp.GetReadBackup().Data)
			}
			r = resp.GetReadBackup()
			req.GetReadBackup().Backup = r.Backup
		}
		if w == nil {
			var err error
			w, err = raftstore.NewBackupWriter(&out, raftstore.BackupInfo{Cluster: clusterUUID, Incarnation: r.Incarnation, Applied: r.Applied, Term: r.Term, Taken: time.Now(), Bytes: int64(r.Size)})
			require.NoError(t, err)
			g.mkdirs(5) // not in the backup
			lost = g.watch(nil)
		}
		if len(r.Data) == 0 {
			break
		}
		_, err := w.Write(r.Data)
		require.NoError(t, err)
		id, offset = r.Backup, offset+uint64(len(r.Data))
	}
	require.NoError(t, w.Close())
	for _, name := range []string{"m1", "m2", "m3"} {
		g.stop(name)
	}
	first, err := metadata.NextIncarnation(1, rand.Reader)
	require.NoError(t, err)
	g.disk["m9"], g.names = vfs.NewMem(5), []string{"m9"}
	_, err = raftstore.Restore(g.raftConfig("m9"), raftstore.Deps{FS: g.disk["m9"]}, bytes.NewReader(out.Bytes()), int64(out.Len()), first)
	require.NoError(t, err)
	g.start("m9")
	require.EqualValues(t, 2, g.insist(membersReq()).Incarnation)
	g.user.at = "m9"
	_, err = g.user.mutate(mkdir(root, "lost"))
	require.ErrorIs(t, err, moraine.SessionExpired)
	_, err = g.user.do(&wire.MetaRequest{Session: g.user.session, Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: root}}})
	require.ErrorIs(t, err, moraine.SessionExpired)
	g.made = at
	g.again()
	g.allThere()
	// A watch of the lost incarnation says nothing about this one, even once this one has as many
	// entries.
	for g.watch(nil).Next <= lost.Next {
		g.mkdirs(1)
	}
	fresh := g.watch(lost)
	require.True(t, fresh.Resync, "the watch was at %d of the incarnation that is lost, this one is at %d", lost.Next, fresh.Next)
	g.mkdirs(1)
	after := g.watch(fresh)
	require.False(t, after.Resync)
	require.Len(t, after.Events, 1)
	g.mkdirs(2)
	g.join("m4")
	g.insist(addReq("m4"))
	g.votersBecome("m4", "m9")
	g.mkdirs(3)
	g.allThere()
}

// watch continues a watch of the root after its last answer; nil for none.
func (g *growable) watch(last *wire.WatchReply) *wire.WatchReply {
	g.t.Helper()
	resp, err := g.user.do(&wire.MetaRequest{Session: g.user.session, Op: &wire.MetaRequest_Watch{Watch: &wire.Watch{
		Directory: root, After: last.GetNext(), Incarnation: last.GetIncarnation()}}})
	require.NoError(g.t, err)
	return resp.GetWatch()
}

// again opens another session for the user.
func (g *growable) again() {
	g.t.Helper()
	g.user = g.caller("c2")
	g.user.open()
	require.EqualValues(g.t, 2, moraine.ID(g.user.session).Incarnation())
}

// After two of three servers are lost, the last continues alone as another incarnation.
func TestForcedQuorumIsAnotherIncarnation(t *testing.T) {
	g := newGrowable(t)
	g.votersBecome("m1", "m2", "m3")
	left := g.leader()
	for _, name := range []string{"m1", "m2", "m3"} {
		g.stop(name)
	}
	next, err := metadata.NextIncarnation(1, rand.Reader)
	require.NoError(t, err)
	_, err = raftstore.ForceAlone(g.raftConfig(left), raftstore.Deps{FS: g.disk[left]}, next)
	require.NoError(t, err)
	g.start(left)
	g.names = []string{left}
	g.votersBecome(left)
	require.EqualValues(t, 2, g.insist(membersReq()).Incarnation)
	g.user.at = left
	_, err = g.user.mutate(mkdir(root, "lost"))
	require.ErrorIs(t, err, moraine.SessionExpired)
	g.again()
	g.allThere()
	g.mkdirs(3)
	g.join("m4")
	g.insist(addReq("m4"))
	four := []string{left, "m4"}
	slices.Sort(four)
	g.votersBecome(four...)
	g.allThere()
}
