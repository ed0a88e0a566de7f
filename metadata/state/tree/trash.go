package tree

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// TrashOff is the trash of a policy that removes files at once.
const TrashOff = 1

// Trash is where the files of one directory go that lose their last name.
type Trash struct {
	// Top has the trash: its policy says so, or it is the highest directory of the tenant below one
	// whose policy does.
	Top *record.Inode
	// Millis is for how long the trash keeps files.
	Millis uint64
	// Below are the directories from Top to that directory, without Top, the lowest first.
	Below []*record.Inode
}

// TrashOf returns the trash for what is in dir; nil if there is none.
func TrashOf(v *kvtx.View, dir *record.Inode) (*Trash, error) {
	b := &Trash{}
	for at := dir; ; {
		if moraine.IsReserved(at.Name) || len(b.Below) > kvtx.MaxDepth-2 {
			return nil, nil
		}
		p, err := Policy(v, at)
		if err != nil {
			return nil, err
		}
		if at.Tenant == dir.Tenant {
			b.Below = append(b.Below, at)
		}
		if p.TrashMillis != 0 || at.Parent == 0 {
			b.Millis = p.TrashMillis
			break
		}
		if at, err = Ancestor(v, at.Parent); err != nil {
			return nil, kvtx.Damaged(err)
		}
	}
	if b.Millis == 0 || b.Millis == TrashOff {
		return nil, nil
	}
	last := len(b.Below) - 1
	b.Top, b.Below = b.Below[last], b.Below[:last]
	return b, nil
}
