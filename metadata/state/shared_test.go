package state

import (
	"errors"
	"fmt"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/check"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/statetest"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// inside runs fn as one command on kv.
func inside(t *testing.T, m *Machine, kv kvtx.KV, fn func(*kvtx.Tx) error) error {
	t.Helper()
	b, err := m.Begin(kv, 1)
	if err != nil {
		t.Fatal(err)
	}
	tx := b.Begin()
	tx.Now = 1
	if _, err := guard(tx, func() (*wire.MetaResponse, error) { return kvtx.Done(), fn(tx) }); err != nil {
		return err
	}
	b.Merge(tx)
	return b.Flush()
}

// share makes to refer to all tables of from and seals them.
func share(t *kvtx.Tx, from, to *record.Inode) error {
	to.Content, to.Refs, to.LastEnd, to.Stored, to.Size = t.Next(record.CContent), from.Refs, from.LastEnd, from.Stored, from.Size
	err := layout.RefsFrom(&t.View, from.Content, -1, func(r record.Ref) (bool, error) {
		h, err := layout.TableHead(&t.View, r.Table)
		h.Refs, h.Sealed = h.Refs+1, true
		t.Put(t.K.ExtTable(r.Table), h.Encode())
		t.Put(t.K.Ref(to.Content, r.End), r.Encode())
		return true, err
	})
	tree.PutInode(t, to)
	return err
}

// A table that two files share never changes. A change to either file makes new tables for it, and
// the stripes live until neither file refers to them.
func TestSharedTablesAreSealed(t *testing.T) {
	lay := func(m *Machine, tx *kvtx.Tx, i *record.Inode, at int64, id moraine.StripeID) error {
		fleet.InsertStripe(tx, &moraine.Stripe{ID: id, Scheme: moraine.Copies(1), Version: 1, Length: 10, LiveBytes: 10, Chunks: make([]moraine.ChunkState, 1)})
		err := layout.Overlay(tx, i, []moraine.Extent{{Offset: at, Length: 10, Stripe: id}})
		i.Size = max(i.Size, at+10)
		tree.PutInode(tx, i)
		return err
	}
	for what, change := range map[string]func(m *Machine, tx *kvtx.Tx, i *record.Inode) error{
		"append":      func(m *Machine, tx *kvtx.Tx, i *record.Inode) error { return lay(m, tx, i, 100, 900) },
		"overwrite":   func(m *Machine, tx *kvtx.Tx, i *record.Inode) error { return lay(m, tx, i, 35, 900) },
		"cover whole": func(m *Machine, tx *kvtx.Tx, i *record.Inode) error { return lay(m, tx, i, 0, 900) },
		"truncate": func(m *Machine, tx *kvtx.Tx, i *record.Inode) error {
			err := layout.Truncate(tx, i, 55)
			i.Size = 55
			tree.PutInode(tx, i)
			return err
		},
		"remove": func(m *Machine, tx *kvtx.Tx, i *record.Inode) error { return DiscardFile(tx, i) },
	} {
		t.Run(what, func(t *testing.T) {
			m, kv := New(0), statetest.NewKV()
			var a, b *record.Inode
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(inside(t, m, kv, func(tx *kvtx.Tx) (err error) {
				_, err = initialize(tx, &statepb.Init{Cluster: make([]byte, 16), Incarnation: 1})
				return err
			}))
			must(inside(t, m, kv, func(tx *kvtx.Tx) (err error) {
				root, err := tree.Inode(tx, moraine.RootInode)
				if err != nil {
					return err
				}
				for n, file := range []**record.Inode{&a, &b} {
					if *file, err = names.MakeInode(tx, record.Inode{Typ: record.TypeFile, Nlink: 1}); err != nil {
						return err
					}
					names.Link(tx, root, fmt.Sprint(n), *file)
					tree.PutInode(tx, *file)
				}
				for n := range int64(10) {
					if err := lay(m, tx, a, 10*n, moraine.StripeID(n+1)); err != nil {
						return err
					}
				}
				return share(tx, a, b)
			}))
			before, err := layout.ExtentsOf(m.View(kv), a, 0, layout.NoLimit)
			must(err)
			must(inside(t, m, kv, func(tx *kvtx.Tx) error {
				i, err := tree.Inode(tx, b.Id)
				if err != nil {
					return err
				}
				return change(m, tx, i)
			}))
			problems, err := check.Check(m.View(kv))
			if err != nil || len(problems) > 0 {
				t.Fatalf("check: %q %v", problems, err)
			}
			after, err := layout.ExtentsOf(m.View(kv), a, 0, layout.NoLimit)
			must(err)
			if fmt.Sprint(before) != fmt.Sprint(after) {
				t.Errorf("the other file changed from %v to %v", before, after)
			}
		})
	}
}

// DiscardFile removes a named file of the root.
func DiscardFile(t *kvtx.Tx, i *record.Inode) error {
	root, err := tree.Inode(t, moraine.RootInode)
	if err != nil {
		return err
	}
	names.Unlink(t, root, "1", i)
	return names.DropName(t, i, "1")
}

var errStore = errors.New("the store failed")

// failing is a KV whose nth call and all later ones fail.
type failing struct {
	*statetest.KV
	left int
}

func (f *failing) fail() error {
	if f.left--; f.left < 0 {
		return errStore
	}
	return nil
}

func (f *failing) Get(key []byte) ([]byte, bool, error) {
	if err := f.fail(); err != nil {
		return nil, false, err
	}
	return f.KV.Get(key)
}

func (f *failing) Scan(lo, hi []byte, fn func(key, value []byte) bool) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.KV.Scan(lo, hi, fn)
}

func (f *failing) Set(key, value []byte) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.KV.Set(key, value)
}

func (f *failing) Delete(key []byte) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.KV.Delete(key)
}

// A store that fails at any call makes Apply fail. The failure never counts as an absent record,
// and no client gets an answer.
func TestStoreFaultsStopTheNode(t *testing.T) {
	m, kv := New(0), statetest.NewKV()
	apply := func(kv kvtx.KV, cmd *statepb.Command) (Result, error) {
		cmd.Version = 1
		return m.Apply(kv, 1, cmd)
	}
	request := func(req *wire.MetaRequest) *statepb.Command {
		return &statepb.Command{Op: &statepb.Command_Request{Request: req}}
	}
	must := func(cmd *statepb.Command) *wire.MetaResponse {
		t.Helper()
		res, err := apply(kv, cmd)
		if err != nil || res.Response.GetError() != nil {
			t.Fatalf("%v %v", err, res.Response)
		}
		return res.Response
	}
	must(&statepb.Command{Op: &statepb.Command_Init{Init: &statepb.Init{Cluster: make([]byte, 16), Incarnation: 1}}})
	host := &wire.Host{Id: "n1", Addresses: []string{"a:1"}, Devices: []*wire.Device{{Uuid: append(make([]byte, 15), 1), Capacity: 1 << 30}}}
	register := request(&wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{Host: host}}})
	register.Caller = &statepb.Caller{Node: "n1"}
	device := must(register).GetRegisterHost().GetDevices()[0].GetId()
	s := must(request(&wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Nonce: make([]byte, 16), Drawn: 1}}})).GetSession().GetSession()
	f := must(request(&wire.MetaRequest{Session: s, Number: 1, Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: uint64(moraine.RootInode), Name: "f", Type: 1}}})).GetEntry().GetAttr().GetInode()
	g := must(request(&wire.MetaRequest{Session: s, Number: 2, Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Count: 9}}})).GetGrant().GetFirst()
	commit := func(number, stripe, at uint64) *statepb.Command {
		return request(&wire.MetaRequest{Session: s, Number: number, AckedBelow: number, Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{
			Inode: f, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY,
			Stripes: []*wire.Stripe{{Id: stripe, Scheme: &wire.Scheme{K: 1}, Length: 9, Chunks: []*wire.ChunkState{{Device: device, Level: 3}}}},
			Extents: []*wire.Extent{{Offset: at, Length: 9, Stripe: stripe}}}}})
	}
	must(commit(3, g, 0))
	cmds := []*statepb.Command{
		commit(4, g+1, 4),
		request(&wire.MetaRequest{Session: s, Number: 4, Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: uint64(moraine.RootInode), Name: "f"}}}),
		request(&wire.MetaRequest{Session: s, Number: 4, Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: uint64(moraine.RootInode), Name: "f", NewParent: uint64(moraine.RootInode), NewName: "g"}}}),
		request(&wire.MetaRequest{Session: s, Number: 4, Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}}),
		{Op: &statepb.Command_Tick{Tick: &statepb.Tick{Millis: 1}}},
	}
	for n, cmd := range cmds {
		calls := 0
		for ; ; calls++ {
			_, err := apply(&failing{KV: kv.Clone(), left: calls}, cmd)
			if err == nil {
				break
			}
			if !errors.Is(err, errStore) {
				t.Fatalf("command %d, call %d: %v", n, calls, err)
			}
		}
		if calls < 4 {
			t.Errorf("command %d made only %d calls", n, calls)
		}
	}
}
