package metadata_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// owner is a session with a delegated directory, driven by hand.
type owner struct {
	*cacher
	dir  uint64
	next uint64 // reserved inode number
}

// owner opens a session to which the new directory d of the root is delegated.
func (c *cluster) owner(node string) *owner {
	c.t.Helper()
	o := &owner{cacher: c.cacher(node)}
	o.dir = o.made(mkdir(root, "d")).Inode
	r := o.delegate(o.dir)
	require.True(c.t, r.Delegated, r.Why)
	require.Equal(c.t, uint32(100), r.Count)
	o.next = r.First
	return o
}

func (o *owner) delegate(dir uint64) *wire.DelegateReply {
	o.c.t.Helper()
	resp, err := o.do(&wire.MetaRequest{LeaseEpoch: o.epoch, Op: &wire.MetaRequest_Delegate{Delegate: &wire.Delegate{Inode: dir, Numbers: 100}}})
	require.NoError(o.c.t, err)
	return resp.GetDelegate()
}

// making is the change that makes an inode in a directory.
func (o *owner) making(dir uint64, name string, typ wire.FileType) *wire.BatchOp {
	o.next++
	return &wire.BatchOp{Inode: o.next - 1, At: time.Now().UnixNano(), Delegate: typ == wire.FileType_FILE_TYPE_DIRECTORY,
		Op: &wire.BatchOp_Create{Create: &wire.Create{Parent: dir, Name: name, Type: typ, Mode: 0o755}}}
}

func (o *owner) file(name string) *wire.BatchOp {
	return o.making(o.dir, name, wire.FileType_FILE_TYPE_REGULAR)
}

func batch(ops ...*wire.BatchOp) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_Batch{Batch: &wire.Batch{Ops: ops}}}
}

// send sends a batch, and returns the kinds of its results.
func (o *owner) send(ops ...*wire.BatchOp) []string {
	o.c.t.Helper()
	req := batch(ops...)
	req.LeaseEpoch = o.epoch
	resp, err := o.do(req)
	require.NoError(o.c.t, err)
	return outcomes(resp.GetBatch())
}

func outcomes(b *wire.BatchReply) (kinds []string) {
	for _, r := range b.GetResults() {
		kind := "ok"
		if r.Error != nil {
			kind = moraine.Kind(r.Error.Kind).String()
		}
		kinds = append(kinds, kind)
	}
	return kinds
}

// wanted returns the delegations that the session must end, besides those that it is ending.
func (o *owner) wanted(ending ...uint64) []uint64 {
	o.c.t.Helper()
	return o.leases(&wire.Leases{Ending: ending}).Delegations
}

func (o *owner) end(dirs ...uint64) {
	o.c.t.Helper()
	_, err := o.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndDelegation{EndDelegation: &wire.EndDelegation{Inodes: dirs}}})
	require.NoError(o.c.t, err)
}

// What others request of a delegated directory waits until its session has sent what it has queued, and
// then shows it.
func TestRequestsThatMeetADelegationWait(t *testing.T) {
	read := func(op *wire.MetaRequest) func(*client, *owner) *wire.MetaRequest {
		return func(*client, *owner) *wire.MetaRequest { return op }
	}
	rename := func(r *wire.Rename) *wire.MetaRequest {
		return &wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: r}}
	}
	for name, request := range map[string]func(*client, *owner) *wire.MetaRequest{
		"walk": read(&wire.MetaRequest{Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{Path: "d/new"}}}),
		"lookup": func(_ *client, o *owner) *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_Lookup{Lookup: &wire.Lookup{Parent: o.dir, Name: "new"}}}
		},
		"lookup of it": read(lookup("d")),
		"readdir": func(_ *client, o *owner) *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: o.dir}}}
		},
		"getattr": func(_ *client, o *owner) *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: o.dir}}}
		},
		"create": func(_ *client, o *owner) *wire.MetaRequest { return create(o.dir, "other") },
		"setattr": func(_ *client, o *owner) *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: o.dir, Valid: 1, Mode: 0o700}}}
		},
		"remove of a file": func(_ *client, o *owner) *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: o.dir, Name: "new"}}}
		},
		"rename in": func(k *client, o *owner) *wire.MetaRequest {
			k.made(create(root, "in"))
			return rename(&wire.Rename{Parent: root, Name: "in", NewParent: o.dir, NewName: "in"})
		},
		"rename out": func(_ *client, o *owner) *wire.MetaRequest {
			return rename(&wire.Rename{Parent: o.dir, Name: "new", NewParent: root, NewName: "out"})
		},
		"rename of it": read(rename(&wire.Rename{Parent: root, Name: "d", NewParent: root, NewName: "moved"})),
		"link": func(k *client, o *owner) *wire.MetaRequest {
			f := k.made(create(root, "linked")).Inode
			return &wire.MetaRequest{Op: &wire.MetaRequest_Link{Link: &wire.Link{Inode: f, Parent: o.dir, Name: "link"}}}
		},
		"commit with a name": func(k *client, o *owner) *wire.MetaRequest {
			f := k.made(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: root, Unlinked: true, Type: wire.FileType_FILE_TYPE_REGULAR}}}).Inode
			return &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE,
				Link: &wire.LinkTarget{Parent: o.dir, Name: "new", Replace: true}}}}
		},
		"clone of the tree": func(_ *client, o *owner) *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_CloneTree{CloneTree: &wire.CloneTree{Inode: o.dir, Parent: root, Name: "clone"}}}
		},
		"removal of the tree": read(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: root, Name: "d"}}}),
		"set attribute": func(_ *client, o *owner) *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_SetXattr{SetXattr: &wire.SetXattr{Inode: o.dir, Name: "user.x", Value: []byte("x")}}}
		},
		"rename over": func(k *client, o *owner) *wire.MetaRequest {
			k.made(create(root, "over"))
			return rename(&wire.Rename{Parent: root, Name: "over", NewParent: o.dir, NewName: "new"})
		},
		"exchange": func(k *client, o *owner) *wire.MetaRequest {
			k.made(create(root, "other"))
			return rename(&wire.Rename{Parent: root, Name: "other", NewParent: o.dir, NewName: "new", Exchange: true})
		},
		"policy": func(_ *client, o *owner) *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_GetPolicy{GetPolicy: &wire.GetPolicy{Inode: o.dir}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(c *cluster) {
				o, other := c.owner("a"), c.open(peer(transport.RoleClient, "b"))
				answered := other.later(request(other, o))
				requireWaits(t, answered, "a request that meets the delegation")
				require.Equal(t, []uint64{o.dir}, o.wanted())
				require.Empty(t, o.wanted(o.dir), "the session said that it ends it")
				require.Equal(t, []string{"ok"}, o.send(o.file("new")), "what is queued is still accepted")
				requireWaits(t, answered, "a request while the session still has the directory")
				o.end(o.dir)
				requireAnswered(t, answered, "the request after the delegation")
				require.Empty(t, o.wanted())
				require.Equal(t, []string{"stale"}, o.send(o.file("late")), "the directory is no longer delegated")
			})
		})
	}
}

// Requests of the session itself, and those that concern other directories or files, do not wait.
func TestWhatDoesNotWaitForADelegation(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		o, other := c.owner("a"), c.open(peer(transport.RoleClient, "b"))
		old := o.made(create(o.dir, "old")).Inode
		require.Equal(t, []string{"ok"}, o.send(o.making(o.dir, "sub", wire.FileType_FILE_TYPE_DIRECTORY)))
		o.end(o.next - 1)
		sub := o.next - 1
		o.walk("d/old")
		other.made(create(root, "beside"))
		for what, req := range map[string]*wire.MetaRequest{
			"attributes of a file in it": {Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: old}}},
			"a directory below it":       {Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: sub}}},
			"a policy below it":          {Op: &wire.MetaRequest_GetPolicy{GetPolicy: &wire.GetPolicy{Inode: sub}}},
		} {
			_, err := other.ask(req)
			require.NoError(t, err, what)
		}
		require.NotZero(t, other.made(create(sub, "f")).Inode)
		require.Empty(t, o.wanted())
		require.False(t, (&owner{cacher: c.cacher("c")}).delegate(o.dir).Delegated)
		require.Empty(t, o.wanted(), "a request for the delegation takes nothing from the session that has it")
	})
}

// A session that does not end a delegation is not renewed, and loses it after a term. Several requests
// share one recall.
func TestADelegationThatIsNotEndedIsRevoked(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		o := c.owner("a")
		var waiting []func() (bool, error)
		for i := range 5 {
			other := c.open(peer(transport.RoleClient, fmt.Sprintf("b%d", i)))
			waiting = append(waiting, other.later(create(o.dir, fmt.Sprintf("f%d", i))))
		}
		began := time.Now()
		renewed := time.Now()
		for range 12 {
			time.Sleep(300 * time.Millisecond)
			if o.leases(&wire.Leases{Renew: true, Ending: []uint64{o.dir}}).Renewed {
				renewed = time.Now()
			}
		}
		require.LessOrEqual(t, renewed.Sub(began), time.Second)
		requireWaits(t, waiting[0], "a request while the session may still trust its standing")
		time.Sleep(600 * time.Millisecond)
		for _, answered := range waiting {
			requireAnswered(t, answered, "a request past the term")
		}
		require.Equal(t, []string{"stale"}, o.send(o.file("lost")))
	})
}

// The end of the session ends its delegations.
func TestADelegationEndsWithItsSession(t *testing.T) {
	for _, closes := range []bool{true, false} {
		t.Run(fmt.Sprintf("closed=%t", closes), func(t *testing.T) {
			bubble(t, nil, func(c *cluster) {
				o, other := c.owner("a"), c.open(peer(transport.RoleClient, "b"))
				answered := other.later(create(o.dir, "f"))
				requireWaits(t, answered, "a request that meets the delegation")
				if closes {
					_, err := o.do(&wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}})
					require.NoError(t, err)
				} else {
					time.Sleep(5 * time.Second)
				}
				requireAnswered(t, answered, "the request")
			})
		})
	}
}

// A new leader knows the delegations, and recalls them again.
func TestANewLeaderRecallsDelegations(t *testing.T) {
	for _, when := range []string{"before the recall", "during the recall", "after the end"} {
		t.Run(when, func(t *testing.T) {
			bubble(t, nil, func(c *cluster) {
				o, other := c.owner("a"), c.open(peer(transport.RoleClient, "b"))
				if when == "before the recall" {
					c.elect("m2")
					o.begin(0)
				}
				answered := other.later(create(o.dir, "f"))
				requireWaits(t, answered, "a request that meets the delegation")
				switch when {
				case "during the recall":
					c.elect("m2")
					is, err := answered()
					require.True(t, is)
					require.ErrorIs(t, err, moraine.Unavailable)
					other.number--
					answered = other.later(create(o.dir, "f"))
					requireWaits(t, answered, "the request at the next leader")
					r := o.leases(&wire.Leases{})
					require.True(t, r.Ended, "a new leader knows no standing")
					require.Equal(t, []uint64{o.dir}, r.Delegations)
					o.begin(0)
				case "after the end":
					c.group.Elect("")
				}
				if when == "after the end" {
					c.elect("m3")
					o.begin(0)
					o.end(o.dir)
					other.number--
					answered = other.later(create(o.dir, "f"))
				} else {
					require.Equal(t, []uint64{o.dir}, o.wanted())
					require.Equal(t, []string{"ok"}, o.send(o.file("queued")), "the state says that the directory is still the session's")
					o.end(o.dir)
				}
				time.Sleep(4 * time.Second) // the new leader waits for the holders of leases
				requireAnswered(t, answered, "the request")
			})
		})
	}
}

// A request goes on from one delegated directory to the next.
func TestARequestMeetsNestedDelegations(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		o, other := c.owner("a"), c.open(peer(transport.RoleClient, "b"))
		answered := inBackground(func() error {
			_, err := other.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{Path: "d/sub/f"}}})
			return err
		})
		requireWaits(t, answered, "a walk")
		sub := o.next
		file := o.making(sub, "f", wire.FileType_FILE_TYPE_REGULAR)
		file.Inode++
		mk := o.making(o.dir, "sub", wire.FileType_FILE_TYPE_DIRECTORY)
		mk.Inode = sub
		require.Equal(t, []string{"ok", "ok"}, o.send(mk, file))
		o.end(o.dir)
		requireWaits(t, answered, "a walk that meets the next delegation")
		require.Equal(t, []uint64{sub}, o.wanted())
		o.end(sub)
		requireAnswered(t, answered, "the walk")
	})
}

// A batch has one answer, which a repeat gets again, and its changes fail one by one.
func TestABatchIsAppliedOnce(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		o := c.owner("a")
		first := o.file("x")
		req := batch(first, o.file("x"), o.file("y"), &wire.BatchOp{Op: &wire.BatchOp_Remove{Remove: &wire.Remove{Parent: o.dir, Name: "missing"}}},
			&wire.BatchOp{Op: &wire.BatchOp_Remove{Remove: &wire.Remove{Parent: root, Name: "d", Directory: true}}},
			&wire.BatchOp{Inode: first.Inode, Op: &wire.BatchOp_Create{Create: &wire.Create{Parent: o.dir, Name: "again", Type: wire.FileType_FILE_TYPE_REGULAR}}},
			&wire.BatchOp{Op: &wire.BatchOp_Rename{Rename: &wire.Rename{Parent: o.dir, Name: "y", NewParent: o.dir, NewName: "z"}}},
			&wire.BatchOp{Op: &wire.BatchOp_SetAttr{SetAttr: &wire.SetAttr{Inode: first.Inode, Valid: 1, Mode: 0o600}}})
		want := []string{"ok", "already exists", "ok", "not found", "stale", "invalid argument", "ok", "ok"}
		resp, err := o.do(req)
		require.NoError(t, err)
		require.Equal(t, want, outcomes(resp.GetBatch()))
		resp, err = c.do(o.peer, req) // the answer was lost
		require.NoError(t, err)
		require.Equal(t, want, outcomes(resp.GetBatch()))
		list, err := o.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: o.dir}}})
		require.NoError(t, err)
		require.Len(t, list.GetReadDir().Entries, 2)
		require.Equal(t, uint32(0o600), list.GetReadDir().Entries[0].Attr.Mode)
	})
}

// The end of a delegation whose answer was lost is repeated.
func TestTheEndOfADelegationIsRepeated(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		o, other := c.owner("a"), c.open(peer(transport.RoleClient, "b"))
		answered := other.later(create(o.dir, "f"))
		requireWaits(t, answered, "a request that meets the delegation")
		end := &wire.MetaRequest{Op: &wire.MetaRequest_EndDelegation{EndDelegation: &wire.EndDelegation{Inodes: []uint64{o.dir}}}}
		for range 2 {
			_, err := o.do(end)
			require.NoError(t, err)
			_, err = c.do(o.peer, end)
			require.NoError(t, err)
		}
		requireAnswered(t, answered, "the request")
		require.Contains(t, o.delegate(o.dir).Why, "wanted")
		time.Sleep(11 * time.Second)
	})
}

// A confined session neither waits for directories outside its own nor learns of them, and works in
// delegations of its own.
func TestConfinedSessionsAndDelegations(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		o := c.owner("a")
		mine := o.made(mkdir(root, "mine")).Inode
		p := peer(transport.RoleClient, "b")
		p.Scope = "/mine"
		confined := c.open(p)
		for what, req := range map[string]*wire.MetaRequest{
			"getattr": {Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: o.dir}}},
			"readdir": {Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: o.dir}}},
			"lookup":  {Op: &wire.MetaRequest_Lookup{Lookup: &wire.Lookup{Parent: o.dir, Name: "x"}}},
		} {
			_, err := confined.ask(req)
			require.ErrorIs(t, err, moraine.NotFound, what)
		}
		_, err := confined.do(create(o.dir, "x"))
		require.ErrorIs(t, err, moraine.NotFound)
		require.Empty(t, o.wanted())
		require.True(t, o.delegate(mine).Delegated)
		answered := confined.later(create(mine, "x"))
		requireWaits(t, answered, "a create in a delegated directory of the scope")
		require.Equal(t, []uint64{mine}, o.wanted())
		o.end(mine)
		requireAnswered(t, answered, "the create")
	})
}

// Two sessions that have directories for themselves, and whose batches touch what the other has cached,
// never wait for each other.
func TestBatchesDoNotWaitForEachOther(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		a := c.owner("a")
		b := &owner{cacher: c.cacher("b")}
		b.dir = b.made(mkdir(root, "e")).Inode
		r := b.delegate(b.dir)
		require.True(t, r.Delegated, r.Why)
		b.next = r.First
		ra, rb := a.later(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: b.dir}}}), b.later(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: a.dir}}})
		requireWaits(t, ra, "a listing of the other directory")
		requireWaits(t, rb, "a listing of the other directory")
		require.Equal(t, []string{"ok"}, a.send(a.file("x")), "a batch waits for no recall of its own session")
		require.Equal(t, []string{"ok"}, b.send(b.file("x")))
		a.end(a.dir)
		b.end(b.dir)
		requireAnswered(t, ra, "the listing")
		requireAnswered(t, rb, "the listing")
	})
}

// A session that has cached something of a directory prevents its delegation, and one that returns with
// an old cache gets nothing of it back.
func TestCachesAndDelegations(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		h, o := c.cacher("h"), &owner{cacher: c.cacher("a")}
		o.dir = o.made(mkdir(root, "d")).Inode
		h.walk("d/f")
		exact := h.leases(&wire.Leases{}).Exact
		require.Contains(t, o.delegate(o.dir).Why, "cached")
		time.Sleep(4 * time.Second) // the standing of h ends
		o.begin(0)
		require.True(t, o.delegate(o.dir).Delegated)
		reply := h.begin(exact, root, o.dir)
		require.Len(t, reply.Recalls, 1)
		require.True(t, reply.Recalls[0].All, "it drops everything")
	})
}

// A job does what a person requested, so it waits too.
func TestAJobWaitsForADelegation(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		o, other := c.owner("a"), c.open(peer(transport.RoleClient, "b"))
		top := o.made(mkdir(root, "top")).Inode
		sub := o.made(mkdir(top, "sub")).Inode
		require.True(t, o.delegate(sub).Delegated)
		_, err := other.do(&wire.MetaRequest{Op: &wire.MetaRequest_CloneTree{CloneTree: &wire.CloneTree{Inode: top, Parent: root, Name: "clone"}}})
		require.NoError(t, err)
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, []uint64{sub}, o.wanted(), "the job found the delegated directory")
		require.Equal(t, []string{"ok"}, o.send(o.making(sub, "f", wire.FileType_FILE_TYPE_REGULAR)))
		o.end(sub)
		require.Eventually(t, func() bool {
			time.Sleep(time.Second)
			resp, err := other.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{Path: "clone/sub/f"}}})
			return err == nil && resp.GetWalk().GetFound()
		}, 20*time.Second, time.Second)
	})
}
