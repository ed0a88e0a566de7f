package state

import (
	"encoding/binary"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// A checkpoint is immutable. Its directory is sealed from its making on, its files
// from the entry that puts them there, and the links of its run while they point at
// it. Of a sealed inode nothing that a reader sees may change: type, mode, owner,
// names, times, size, generation, attributes, and the entries of a directory.
//
// No handler checks this for itself. At the end of each command the records of sealed
// inodes that it wrote are compared with what they were before it. So a request that
// is new tomorrow is refused as well, through whatever door it comes. Where the bytes
// are (flush, evict, stage, repair, rewrite, pack) is no part of the comparison.
//
// The handlers of checkpoints name the sealed inodes that they change (open). A file
// whose directory is sealed no more, because its checkpoint was removed, may be
// unlinked, and nothing else.

// open lets the command change a sealed inode.
func (t *tx) open(i *record.Inode) { t.opened = append(t.opened, i.Id) }

// unseal ends the seal of a checkpoint's directory: from here on its files may be
// unlinked.
func (t *tx) unseal(dir *record.Inode) {
	t.open(dir)
	dir.Sealed, dir.Step = false, record.StepID{}
}

// sealedRecord reports whether an inode's record has the flag, without decoding it.
func sealedRecord(b []byte) bool {
	if len(b) < 4 || b[2]&0x80 == 0 {
		return false
	}
	flags, _ := binary.Uvarint(b[2:])
	return flags&record.InodeSealed != 0
}

// checkSeals fails with Immutable where the command changed what is sealed.
func (t *tx) checkSeals() error {
	if t.openAll {
		return nil
	}
	for _, cell := range t.order {
		if len(cell.key) != 11 || cell.key[2] != record.TabInode || cell.want.fresh {
			continue
		}
		old, err := t.b.load([]byte(cell.key))
		if err != nil {
			return err
		}
		if !old.exists || !sealedRecord(old.value) {
			continue
		}
		was := &record.Inode{Id: moraine.InodeID(binary.BigEndian.Uint64([]byte(cell.key[3:])))}
		if err := was.Decode(old.value); err != nil {
			return err
		}
		var now *record.Inode
		if w := cell.want; w.exists {
			now = &record.Inode{Id: was.Id}
			if err := now.Decode(w.value); err != nil {
				return err
			}
		}
		if err := t.checkSeal(was, now); err != nil {
			return err
		}
	}
	return nil
}

// checkSeal compares a sealed inode with what the command made of it; now is nil where
// it is gone.
func (t *tx) checkSeal(was, now *record.Inode) error {
	if slices.Contains(t.opened, was.Id) {
		return nil
	}
	if gone := now == nil || now.Nlink == 0; gone && was.Typ == record.TypeFile {
		if ok, err := t.mayUnlink(was); ok || err != nil {
			return err
		}
		return t.immutable(was)
	}
	if now == nil || visible(was) != visible(now) {
		return t.immutable(was)
	}
	return nil
}

// mayUnlink reports whether a sealed file may lose its name: its checkpoint was
// removed, and its directory is an ordinary one.
func (t *tx) mayUnlink(file *record.Inode) (bool, error) {
	if file.Parent == 0 {
		return true, nil
	}
	b, ok, err := t.Get(t.k.inode(file.Parent))
	return !ok || !sealedRecord(b), err
}

// seen is what readers see of an inode.
type seen struct {
	typ                       uint8
	mode, uid, gid, nlink     uint32
	parent                    moraine.InodeID
	manyLinks, xattrs, sealed bool
	owner                     moraine.SessionID
	mtime, ctime              int64
	name, target              string
	entries                   uint64
	size                      int64
	generation                moraine.Generation
	step                      record.StepID
}

func visible(i *record.Inode) seen {
	return seen{typ: i.Typ, mode: i.Mode, uid: i.Uid, gid: i.Gid, nlink: i.Nlink, parent: i.Parent,
		manyLinks: i.ManyLinks, xattrs: i.Xattrs, sealed: i.Sealed, owner: i.Owner, mtime: i.Mtime, ctime: i.Ctime,
		name: i.Name, target: i.Target, entries: i.Entries, size: i.Size, generation: i.Generation, step: i.Step}
}

// immutable is the error of a change of what is sealed. It names the checkpoint.
func (t *tx) immutable(i *record.Inode) error {
	what, dir := "", i
	if i.Typ == record.TypeFile && i.Parent != 0 {
		was, err := t.b.load(t.k.inode(i.Parent))
		if err != nil {
			return err
		}
		if was.exists {
			dir = &record.Inode{Id: i.Parent}
			if err := dir.Decode(was.value); err != nil {
				return err
			}
		}
	}
	switch {
	case i.Typ == record.TypeSymlink:
		return fail(moraine.Immutable, "change", i.Id.String(), "the link is its training run's: it follows the run's checkpoints")
	case dir.Step != (record.StepID{}):
		what = "the committed checkpoint " + dir.Step.String()
	case dir.Sealed:
		what = "a checkpoint that is being saved"
	default:
		return fail(moraine.Immutable, "change", i.Id.String(), "it belonged to a checkpoint, and can only be removed")
	}
	return fail(moraine.Immutable, "change", i.Id.String(), "it belongs to %s, which nobody changes: remove the whole of it (moraine ckpt rm), or work on a clone", what)
}

// mayMoveTree fails where a tree that holds committed checkpoints is moved or removed.
func (t *tx) mayMoveTree(c *seatChange, what record.Usage) error {
	if what.Steps == c.before.own().Steps || t.openAll || t.forced || c.before.typ != record.TypeDirectory {
		return nil
	}
	return holdsSteps(c.id, what.Steps-c.before.own().Steps)
}

func holdsSteps(dir moraine.InodeID, n int64) error {
	return fail(moraine.Immutable, "change", dir.String(), "committed checkpoints are below it (%d), and stay where they are: remove them first (moraine ckpt rm), or give --checkpoints to moraine rm -r or moraine mv", n)
}

// mayRenameTree is mayMoveTree before a directory gets another name, or loses the one that
// it has. Not even by force does a checkpoint leave its place in its run.
func (t *tx) mayRenameTree(dir *record.Inode) error {
	if dir.Typ != record.TypeDirectory {
		return nil
	}
	if dir.Sealed {
		return t.immutable(dir)
	}
	n, err := t.stepsBelow(dir)
	switch {
	case err != nil || n == 0:
		return err
	case !t.forced:
		return holdsSteps(dir.Id, n)
	}
	r, err := t.runRecord(moraine.RunID(dir.Parent))
	if err == nil && r != nil {
		err = fail(moraine.Immutable, "change", dir.Id.String(), "committed checkpoints of a run that stays are below it (%d)", n)
	}
	return err
}

// stepsBelow returns how many committed checkpoints are below a directory.
func (t *tx) stepsBelow(dir *record.Inode) (int64, error) {
	s, err := look[record.UsageState](&t.view, t.k.meta(record.MetaUsage))
	if err != nil || s == nil || s.Live == 0 {
		return 0, err
	}
	below, err := t.usageNow(usageKey{s.Live, dir.Id})
	return below.Steps, err
}

// removeFromStep lets a request unlink in a checkpoint's directory. A checkpoint's index
// is the first of its files that `rm -r` meets, and what makes it a checkpoint: whoever
// unlinks it removes the checkpoint as a whole, by the rules of RemoveStep, and may then
// unlink the other files. Nothing else in it can be unlinked.
func (m *Machine) removeFromStep(t *tx, dir, child *record.Inode) error {
	switch {
	case !dir.Sealed:
		return nil
	case dir.Step == (record.StepID{}):
		return t.immutable(dir)
	}
	s, err := t.mustStep(dir.Step)
	if err != nil {
		return err
	}
	if child.Id != s.Index {
		return t.immutable(child)
	}
	r, runDir, err := t.runInScope(t.scope, "remove step", s.Id.Run)
	if err != nil {
		return err
	}
	return m.takeAway(t, r, runDir, s, removal{emptied: true})
}

// removeStepTree removes the checkpoint whose directory a request removes as a tree.
func (m *Machine) removeStepTree(t *tx, dir *record.Inode, force bool) (*wire.MetaResponse, error) {
	if dir.Step == (record.StepID{}) {
		return nil, t.immutable(dir)
	}
	id := dir.Step
	r, runDir, err := t.runInScope(t.scope, "remove step", id.Run)
	if err != nil {
		return nil, err
	}
	s, err := t.mustStep(id)
	if err != nil {
		return nil, err
	}
	return removeReply(dir), m.takeAway(t, r, runDir, s, removal{force: force})
}
