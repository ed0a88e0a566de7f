package state_test

import (
	"testing"

	"github.com/morainefs/moraine/transport/wire"
)

func removing(parent uint64, name string, dir bool) *wire.BatchOp {
	return &wire.BatchOp{Op: &wire.BatchOp_Remove{Remove: &wire.Remove{Parent: parent, Name: name, Directory: dir}}}
}

func renaming(parent uint64, name string, newParent uint64, newName string) *wire.BatchOp {
	return &wire.BatchOp{Op: &wire.BatchOp_Rename{Rename: &wire.Rename{Parent: parent, Name: name, NewParent: newParent, NewName: newName}}}
}

// The changes of a batch do not meet the delegations of directories above, whatever policies exist.
func TestABatchBelowTheDelegationsOfOthers(t *testing.T) {
	for name, policies := range map[string]func(c *client, top uint64){
		"without a policy": func(*client, uint64) {},
		"with another policy": func(c *client, _ uint64) {
			c.ok(c.setTrash(c.mkdir(c.root, "beside"), hourMillis))
		},
		"below a trash": func(c *client, top uint64) { c.ok(c.setTrash(top, hourMillis)) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			a, other := b.open(leased), b.open(leased)
			top := a.mkdir(a.root, "top")
			data := a.mkdir(top, "data")
			x, y := a.mkdir(data, "x"), a.mkdir(data, "y")
			policies(a, top)
			first := a.delegate(x, 10).First
			for dir, who := range map[uint64]*client{y: a, data: other} {
				if r := who.delegate(dir, 10); !r.Delegated {
					t.Fatal(r.Why)
				}
			}
			sub := making(first+2, x, "sub", wire.FileType_FILE_TYPE_DIRECTORY)
			sub.Delegate = true
			holdKinds(t, "changes", a.batch(
				makingFile(first, x, "f"), makingFile(first+1, x, "g"), sub, makingFile(first+3, first+2, "h"),
				removing(x, "f", false), renaming(first+2, "h", x, "g"), renaming(x, "sub", y, "sub"), removing(y, "sub", true), removing(x, "g", false)),
				"ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok")
			if left := a.attr(x); left.Nlink != 2 {
				t.Errorf("the directory has %v", left)
			}
			if trash := a.exists("/top/.trash"); trash != (name == "below a trash") {
				t.Errorf("there is a trash: %t", trash)
			}
			b.check()
			b.replays()
		})
	}
}

// What is in a trash is not delegated, and what was delegated before it moved there delays no removal.
func TestNoDelegationInATrash(t *testing.T) {
	b := newBench(t)
	a, other := b.open(leased), b.open(leased)
	top := a.mkdir(a.root, "top")
	a.ok(a.setTrash(top, hourMillis))
	d := a.mkdir(top, "d")
	if r := other.delegate(a.mkdir(d, "below"), 0); !r.Delegated {
		t.Fatal(r.Why)
	}
	a.mkfile(d, "f")
	a.ok(a.do(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: top, Name: "d"}}}))
	hour := a.hour("/top")
	for _, path := range []string{"/top/.trash", hour, hour + "/d"} {
		if r := other.delegate(a.walkTo(path), 0); r.Delegated {
			t.Errorf("%s is delegated", path)
		}
	}
	d = a.mkdir(top, "d")
	below := a.mkdir(d, "below")
	first := a.delegate(below, 10).First
	holdKinds(t, "a removal at the path of what is delegated", a.batch(makingFile(first, below, "f"), removing(below, "f", false),
		makingFile(first+1, below, "f"), removing(below, "f", false)), "ok", "ok", "ok", "ok")
	b.check()
	b.replays()
}
