package metadata_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// cacher is a session with leases, driven by hand: it carries out a recall when the test says so.
type cacher struct {
	*client
	epoch uint64
}

func (c *cluster) cacher(node string) *cacher {
	c.t.Helper()
	c.nonces++
	p := peer(transport.RoleClient, node)
	resp, err := c.do(p, &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{
		Nonce: append(make([]byte, 15), c.nonces), Leases: true}}})
	require.NoError(c.t, err)
	require.True(c.t, resp.GetSession().Leases)
	k := &cacher{client: &client{c: c, peer: p, session: resp.GetSession().Session, reply: resp.GetSession()}}
	k.begin(0)
	return k
}

// leases sends one request about the registration.
func (k *cacher) leases(req *wire.Leases) *wire.LeasesReply {
	k.c.t.Helper()
	req.Epoch = k.epoch
	resp, err := k.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Leases{Leases: req}})
	require.NoError(k.c.t, err)
	return resp.GetLeases()
}

// begin begins the next registration with the former leases.
func (k *cacher) begin(exact uint64, held ...uint64) *wire.LeasesReply {
	k.c.t.Helper()
	k.epoch++
	r := k.leases(&wire.Leases{Begin: true, Exact: exact, Held: held})
	require.False(k.c.t, r.Ended)
	require.True(k.c.t, r.Renewed)
	return r
}

// walk walks a path and returns the answer with the granted leases.
func (k *cacher) walk(path string) (*wire.WalkReply, []uint64) {
	k.c.t.Helper()
	resp, err := k.ask(&wire.MetaRequest{LeaseEpoch: k.epoch, Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{Path: path, Steps: true}}})
	require.NoError(k.c.t, err)
	return resp.GetWalk(), resp.GetLease().GetLeases()
}

// recalled returns what the session must drop, after ack.
func (k *cacher) recalled(ack uint64) []*wire.Recall {
	k.c.t.Helper()
	return k.leases(&wire.Leases{Ack: ack}).Recalls
}

// later makes a request in the background; the function returned reports whether
// it has been answered, and its error.
func (k *client) later(req *wire.MetaRequest) func() (bool, error) {
	k.number++
	req.Session, req.Number = k.session, k.number
	return inBackground(func() error { _, err := k.c.do(k.peer, req); return err })
}

func inBackground(do func() error) func() (bool, error) {
	done := make(chan error, 1)
	go func() { done <- do() }()
	return func() (bool, error) {
		synctest.Wait()
		select {
		case err := <-done:
			done <- err
			return true, err
		default:
			return false, nil
		}
	}
}

func create(parent uint64, name string) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
		Parent: parent, Name: name, Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644, Exclusive: true}}}
}

func (k *client) made(req *wire.MetaRequest) *wire.Attr {
	k.c.t.Helper()
	resp, err := k.do(req)
	require.NoError(k.c.t, err)
	return resp.GetEntry().GetAttr()
}

func requireWaits(t *testing.T, answered func() (bool, error), what string) {
	t.Helper()
	is, err := answered()
	require.False(t, is, "%s must wait; it was answered (%v)", what, err)
}

func requireAnswered(t *testing.T, answered func() (bool, error), what string) {
	t.Helper()
	is, err := answered()
	require.True(t, is, "%s must have been answered", what)
	require.NoError(t, err)
}

func TestALeaseIsRecalledBeforeAChangeIsKnown(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		writer := c.open(peer(transport.RoleClient, "w"))
		reader := c.open(peer(transport.RoleClient, "r"))
		dir := writer.made(mkdir(root, "d")).Inode
		other := writer.made(mkdir(root, "o")).Inode
		h := c.cacher("h")
		w, leases := h.walk("d/f")
		require.False(t, w.Found)
		require.ElementsMatch(t, []uint64{root, dir}, leases, "a missing name is leased with its directory, the path with the root")

		created := writer.later(create(dir, "f"))
		requireWaits(t, created, "a change of what is leased")
		seen := inBackground(func() error {
			_, err := reader.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Lookup{Lookup: &wire.Lookup{Parent: dir, Name: "f"}}})
			return err
		})
		requireWaits(t, seen, "a read that shows the change")
		listed := inBackground(func() error {
			_, err := reader.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: dir}}})
			return err
		})
		requireWaits(t, listed, "a listing that shows the change")
		refused := reader.later(create(dir, "f"))
		requireWaits(t, refused, "a refusal that shows the change")
		reader.made(create(other, "x")) // concerns no session
		_, err := reader.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Lookup{Lookup: &wire.Lookup{Parent: other, Name: "x"}}})
		require.NoError(t, err, "what does not show the change does not wait")

		recalls := h.recalled(0)
		require.Len(t, recalls, 1)
		var names []string
		for _, touch := range recalls[0].Touches {
			require.Equal(t, dir, touch.Lease)
			names = append(names, touch.Name)
		}
		require.Contains(t, names, "f", "the recall names the entry")
		require.Len(t, h.recalled(0), 1, "a recall whose delivery was lost is there again")
		requireWaits(t, created, "a change whose recall was delivered and not acknowledged")

		h.recalled(recalls[0].Number)
		requireAnswered(t, created, "the change")
		requireAnswered(t, seen, "the read")
		requireAnswered(t, listed, "the listing")
		is, err := refused()
		require.True(t, is)
		require.ErrorIs(t, err, moraine.Exists)
	})
}

func TestAHolderThatIsSilentRunsOut(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		writer := c.open(peer(transport.RoleClient, "w"))
		dir := writer.made(mkdir(root, "d")).Inode
		h := c.cacher("h")
		h.walk("d/f")
		time.Sleep(time.Second)
		require.True(t, h.leases(&wire.Leases{Renew: true}).Renewed)
		began := time.Now()
		created := writer.later(create(dir, "f"))
		time.Sleep(2900 * time.Millisecond)
		requireWaits(t, created, "a change in the term of a lease")
		time.Sleep(200 * time.Millisecond)
		requireAnswered(t, created, "a change past the term of a lease")
		require.Less(t, time.Since(began), 4*time.Second)

		require.True(t, h.leases(&wire.Leases{Renew: true}).Ended, "leases that ran out are not renewed")
		_, leases := h.walk("d")
		require.Empty(t, leases, "nothing is granted under a standing that is over")
		writer.made(create(dir, "g"))
	})
}

// A request whose deadline passes before another client has answered a recall fails with Timeout, and
// the log names what it waited for.
func TestAWaitForRecalledLeasesIsReported(t *testing.T) {
	var log syncedLog
	bubbleWith(t, func(cfg *metadata.Config, deps *metadata.Deps) {
		deps.Log = slog.New(slog.NewTextHandler(&log, nil))
	}, func(c *cluster) {
		writer := c.open(peer(transport.RoleClient, "w"))
		dir := writer.made(mkdir(root, "d")).Inode
		h := c.cacher("h")
		h.walk("d/f")
		ctx, cancel := context.WithTimeout(transport.WithPeer(context.Background(), writer.peer), time.Second)
		defer cancel()
		req := create(dir, "f")
		writer.number++
		req.Session, req.Number, req.AckedBelow = writer.session, writer.number, writer.number
		routed(req)
		_, err := c.leader().Do(ctx, req)
		require.Equal(t, moraine.Timeout, moraine.KindOf(err), err)
		require.Contains(t, log.String(), `msg="resource wait exceeded" resource="recalled cache leases"`)
	})
}

// A session that renews and never acknowledges a recall would block everybody.
func TestWhoDoesNotCarryOutRecallsIsNotRenewed(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		writer := c.open(peer(transport.RoleClient, "w"))
		dir := writer.made(mkdir(root, "d")).Inode
		h := c.cacher("h")
		h.walk("d/f")
		created := writer.later(create(dir, "f"))
		for range 8 {
			time.Sleep(time.Second)
			h.leases(&wire.Leases{Renew: true})
		}
		requireAnswered(t, created, "the change")
	})
}

func TestTheSessionThatChangesGetsItInTheAnswer(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		h := c.cacher("h")
		dir := h.made(mkdir(root, "d")).Inode
		h.walk("d/f")
		req := create(dir, "f")
		req.LeaseEpoch = h.epoch
		resp, err := h.do(req)
		require.NoError(t, err)
		require.True(t, resp.GetLease().Complete)
		require.NotEmpty(t, resp.GetLease().Touched)
		require.Empty(t, h.recalled(0), "it dropped what the request names by itself")

		resp, err = c.do(h.peer, req) // the answer was lost
		require.NoError(t, err)
		require.False(t, resp.GetLease().Complete, "what the first attempt changed is no longer known")

		// Under another registration it is a holder like any other: the request may be from before.
		h.begin(0)
		h.walk("d/g")
		req = create(dir, "g")
		req.LeaseEpoch = h.epoch - 1
		waits := h.later(req)
		requireWaits(t, waits, "a change asked for under an earlier standing")
		h.recalled(h.recalled(0)[0].Number)
		requireAnswered(t, waits, "the change")
	})
}

func TestFilesWithTwoNamesAreLeasedByThemselves(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		writer := c.open(peer(transport.RoleClient, "w"))
		a, b := writer.made(mkdir(root, "a")).Inode, writer.made(mkdir(root, "b")).Inode
		file := writer.made(create(a, "f")).Inode
		h := c.cacher("h")
		_, leases := h.walk("a/f")
		require.ElementsMatch(t, []uint64{root, a}, leases)

		// With its second name the file goes from its directory's lease to its own.
		linked := writer.later(&wire.MetaRequest{Op: &wire.MetaRequest_Link{Link: &wire.Link{Inode: file, Parent: b, Name: "g"}}})
		requireWaits(t, linked, "the second name of a file whose attributes are leased")
		recalls := h.recalled(0)
		require.True(t, slices.ContainsFunc(recalls[0].Touches, func(w *wire.Touch) bool { return w.Lease == a && w.Inode == file }))
		h.recalled(recalls[0].Number)
		requireAnswered(t, linked, "the link")

		w, leases := h.walk("a/f")
		require.True(t, w.Attr.ManyLinks)
		require.Contains(t, leases, file, "it is leased by itself")
		changed := writer.later(&wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{
			Inode: file, Valid: uint32(wire.SetAttrField_SET_ATTR_MODE), Mode: 0o600}}})
		requireWaits(t, changed, "a change of it")
		h.recalled(recalls[0].Number + 1)
		requireAnswered(t, changed, "the change")

		// And it keeps that lease when it has one name again.
		gone := writer.later(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: b, Name: "g"}}})
		requireWaits(t, gone, "the loss of a name")
		h.recalled(100)
		requireAnswered(t, gone, "the removal")
		w, leases = h.walk("a/f")
		require.EqualValues(t, 1, w.Attr.Nlink)
		require.True(t, w.Attr.ManyLinks)
		require.Contains(t, leases, file)
	})
}

func TestARenameRecallsBothDirectories(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		writer := c.open(peer(transport.RoleClient, "w"))
		a, b := writer.made(mkdir(root, "a")).Inode, writer.made(mkdir(root, "b")).Inode
		file := writer.made(create(a, "f")).Inode
		from, to := c.cacher("from"), c.cacher("to")
		from.walk("a/f")
		to.walk("b/f")
		moved := writer.later(&wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{
			Parent: a, Name: "f", NewParent: b, NewName: "f"}}})
		requireWaits(t, moved, "the rename")
		recall := from.recalled(0)[0]
		require.True(t, slices.ContainsFunc(recall.Touches, func(w *wire.Touch) bool { return w.Lease == a && w.Inode == file && w.Name == "" }),
			"its attributes were under the first directory's lease")
		from.recalled(recall.Number)
		requireWaits(t, moved, "the rename, which the second holder does not know of")
		to.recalled(to.recalled(0)[0].Number)
		requireAnswered(t, moved, "the rename")
	})
}

func TestNoLeaseIsGrantedOnWhatIsBeingRecalled(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		writer := c.open(peer(transport.RoleClient, "w"))
		dir := writer.made(mkdir(root, "d")).Inode
		h, late := c.cacher("h"), c.cacher("late")
		h.walk("d/f")
		created := writer.later(create(dir, "f"))
		requireWaits(t, created, "the change")
		var leases []uint64
		var found bool
		walked := inBackground(func() error {
			w, l := late.walk("d/f")
			found, leases = w.Found, l
			return nil
		})
		requireWaits(t, walked, "a read that asks for a lease")
		requireWaits(t, created, "the change")
		h.recalled(1)
		requireAnswered(t, walked, "the read")
		require.True(t, found)
		require.Contains(t, leases, dir, "it is granted once nothing is pending")
	})
}

func TestANewLeaderWaitsForThoseWhoMayHoldLeases(t *testing.T) {
	for _, how := range []string{"comes back", "is gone", "closed", "never cached"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, nil, func(c *cluster) {
				writer := c.open(peer(transport.RoleClient, "w"))
				dir := writer.made(mkdir(root, "d")).Inode
				var h *cacher
				if how != "never cached" {
					h = c.cacher("h")
					h.walk("d/f")
				}
				if how == "closed" {
					_, err := h.do(&wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}})
					require.NoError(t, err)
				}
				c.elect("m2")
				created := writer.later(create(dir, "f"))
				read := inBackground(func() error { _, err := writer.ask(lookup("d")); return err })
				switch how {
				case "closed", "never cached":
				case "comes back":
					requireWaits(t, created, "a change that a session may not know of")
					requireWaits(t, read, "a read that may show a change of the last leader's")
					require.True(t, h.leases(&wire.Leases{Renew: true}).Ended, "the new leader does not know the standing")
					requireWaits(t, created, "a change before the session has said what it holds")
					r := h.begin(1, root, dir)
					require.True(t, r.Recalls[0].All, "a server that does not know what was touched has everything dropped")
				case "is gone":
					time.Sleep(2900 * time.Millisecond)
					requireWaits(t, created, "a change in the last leader's term")
					time.Sleep(200 * time.Millisecond)
				}
				requireAnswered(t, created, "the change")
				requireAnswered(t, read, "the read")
			})
		})
	}
}

// A session that returns gets recalls of what it missed, and keeps the rest.
func TestASessionThatComesBackKeepsWhatDidNotChange(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		writer := c.open(peer(transport.RoleClient, "w"))
		a, b := writer.made(mkdir(root, "a")).Inode, writer.made(mkdir(root, "b")).Inode
		h := c.cacher("h")
		h.walk("a/f")
		h.walk("b/f")
		exact := h.leases(&wire.Leases{Renew: true}).Exact
		time.Sleep(5 * time.Second) // it is suspended past its leases
		writer.made(create(a, "f"))
		r := h.begin(exact, root, a, b)
		require.Len(t, r.Recalls, 1)
		require.False(t, r.Recalls[0].All)
		for _, touch := range r.Recalls[0].Touches {
			require.Equal(t, a, touch.Lease)
		}
		h.recalled(1)
		changed := writer.later(create(b, "f"))
		requireWaits(t, changed, "a change of what was reclaimed")
		h.recalled(2)
		requireAnswered(t, changed, "the change")

		// A late retry of the request changes nothing; an earlier one is refused.
		again := h.leases(&wire.Leases{Begin: true})
		require.Len(t, again.Recalls, 0)
		h.epoch--
		_, err := h.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Leases{Leases: &wire.Leases{Epoch: h.epoch, Begin: true}}})
		require.ErrorIs(t, err, moraine.Stale)
		h.epoch++
		changed = writer.later(create(b, "g"))
		requireWaits(t, changed, "a change of what is still held")
		h.recalled(3)
		requireAnswered(t, changed, "the change")
	})
}

func TestAReturnedLeaseIsNotRecalled(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		writer := c.open(peer(transport.RoleClient, "w"))
		dir := writer.made(mkdir(root, "d")).Inode
		h := c.cacher("h")
		h.walk("d/f")
		h.leases(&wire.Leases{Returned: []uint64{dir}, Returns: 2})
		writer.made(create(dir, "f"))
		require.Empty(t, h.recalled(0))

		h.walk("d/g")
		h.leases(&wire.Leases{Returned: []uint64{dir}, Returns: 1}) // it comes late
		changed := writer.later(create(dir, "g"))
		requireWaits(t, changed, "a change of what is leased again")
		h.recalled(1)
		requireAnswered(t, changed, "the change")
	})
}

// A session that does not respond does not fill the leader's memory.
func TestTooManyRecallsEndTheStanding(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		writer := c.open(peer(transport.RoleClient, "w"))
		dir := writer.made(mkdir(root, "d")).Inode
		h := c.cacher("h")
		h.walk("d/f")
		another := c.open(peer(transport.RoleClient, "w2"))
		for i := range 600 {
			writer.later(create(dir, fmt.Sprint("a", i)))
			another.later(create(dir, fmt.Sprint("b", i)))
		}
		synctest.Wait()
		require.True(t, h.leases(&wire.Leases{Renew: true}).Ended)
		last := writer.later(create(dir, "last"))
		requireWaits(t, last, "a change that the session may still not know of")
		h.begin(0)
		requireAnswered(t, last, "the change")
	})
}

// When a directory moves, what a confined session may see changes, and the session must begin
// again.
func TestAMovedTreeEndsTheStandingOfConfinedSessions(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		writer := c.open(peer(transport.RoleClient, "w"))
		in, out := writer.made(mkdir(root, "in")).Inode, writer.made(mkdir(root, "out")).Inode
		top := writer.made(mkdir(in, "top")).Inode
		sub := writer.made(mkdir(top, "sub")).Inode
		p := peer(transport.RoleClient, "h")
		p.Scope = "/in"
		c.nonces++
		resp, err := c.do(p, &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{
			Nonce: append(make([]byte, 15), c.nonces), Leases: true}}})
		require.NoError(t, err)
		h := &cacher{client: &client{c: c, peer: p, session: resp.GetSession().Session}}
		h.begin(0)
		w, leases := h.walk("top/sub")
		require.True(t, w.Found)
		require.Contains(t, leases, sub)
		exact := h.leases(&wire.Leases{Renew: true}).Exact
		moved := writer.later(&wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{
			Parent: in, Name: "top", NewParent: out, NewName: "top"}}})
		requireWaits(t, moved, "a move of what a confined session caches")
		require.True(t, h.leases(&wire.Leases{Renew: true}).Ended)
		requireWaits(t, moved, "a move of what the session may still answer")
		r := h.begin(exact, in, top, sub)
		require.True(t, r.Recalls[0].All)
		requireAnswered(t, moved, "the move")
		_, err = h.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: sub}}})
		require.ErrorIs(t, err, moraine.NotFound)
	})
}

// If many sessions change the same directory, its lease costs more than it saves.
func TestALeaseThatIsRecalledAllTheTimeIsNotGranted(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		writer := c.open(peer(transport.RoleClient, "w"))
		dir := writer.made(mkdir(root, "d")).Inode
		h := c.cacher("h")
		granted := func() bool {
			_, leases := h.walk("d/f")
			return slices.Contains(leases, dir)
		}
		require.True(t, granted())
		for i := range uint64(16) {
			require.True(t, granted(), "after %d recalls", i)
			created := writer.later(create(dir, fmt.Sprint(i)))
			requireWaits(t, created, "the change")
			h.recalled(i + 1)
			requireAnswered(t, created, "the change")
		}
		require.False(t, granted(), "a directory where others work all the time")
		h.leases(&wire.Leases{Returned: []uint64{dir}, Returns: 1})
		writer.made(create(dir, "more"))
		require.Empty(t, h.recalled(16))
		time.Sleep(2 * time.Second)
		h.leases(&wire.Leases{Renew: true})
		require.False(t, granted())
		time.Sleep(1500 * time.Millisecond)
		h.leases(&wire.Leases{Renew: true})
		require.True(t, granted(), "it is granted again when that is over")
	})
}
