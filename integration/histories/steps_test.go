package histories_test

import (
	"slices"

	"github.com/morainefs/moraine/transport/wire"
)

// step reports whether the operation may have this answer, and returns the next
// state. An operation with an unknown answer takes effect whatever its answer would
// be; that it never took effect equals taking effect after everything else.
func (a arena) step(in input, out output) (bool, arena) {
	err, next, answer := a.apply(in, out)
	if out.unknown {
		return true, next
	}
	if err != out.err {
		return false, a
	}
	if err != "" || answer == nil {
		return true, next
	}
	return answer(next)
}

// describes accepts an answer that describes n.
func describes(n *node, out output) func(arena) (bool, arena) {
	return func(a arena) (bool, arena) { return a.described(n, out) }
}

// apply performs an operation. It returns the error, the next state, and a function
// that compares the answer.
func (a arena) apply(in input, out output) (err string, next arena, answer func(arena) (bool, arena)) {
	switch in.verb {
	case create, mkdir, symlink:
		return a.applyCreate(in, out)
	case lookup, readdir:
		return a.applyLook(in, out)
	case rename:
		return a.applyRename(in)
	case unlink, rmdir, rmtree:
		return a.applyRemove(in, out)
	case save, concat:
		return a.applySave(in, out)
	case cloneTree:
		return a.applyCloneTree(in)
	}
	kept, by := a.held(in.id)
	switch n := a.find(in.id); {
	case n != nil:
		return a.applyTo(n, in, out)
	case kept != nil:
		return a.applyToKept(kept, by, in, out)
	case a.isDoomed(in.id):
		return out.err, a, nil
	}
	return notFound, a, nil
}

// applyToKept is apply for a file without a name. A file gets none again. Its holder may read and change
// it. So may all others while it lingers, which is a time that the model does not know.
func (a arena) applyToKept(n *node, by int, in input, out output) (string, arena, func(arena) (bool, arena)) {
	switch {
	case out.err == notFound && (by == nobody || !in.calm):
		return notFound, a, nil
	case out.err == denied && (by != in.by || !in.calm):
		return denied, a, nil
	case in.verb == link && n.target == "":
		return notFound, a, nil
	}
	return a.applyTo(n, in, out)
}

// source returns a file to be cloned.
func (a arena) source(id uint64, in input, out output) (n *node, err string) {
	if n := a.find(id); n != nil {
		return n, ""
	}
	n, by := a.held(id)
	switch {
	case n == nil || out.err == notFound && (by == nobody || !in.calm):
		return nil, notFound
	case out.err == denied && (by != in.by || !in.calm):
		return nil, denied
	}
	return n, ""
}

// applyTo is apply for an operation on an inode by its number.
func (a arena) applyTo(n *node, in input, out output) (string, arena, func(arena) (bool, arena)) {
	switch in.verb {
	case stat:
		return "", a, describes(n, out)
	case link:
		switch {
		case n.dir:
			return denied, a, nil
		case a.at[in.slot] != nil:
			return exists, a, nil
		}
		a = a.let(n)
		a.at[in.slot] = n
		return "", a, describes(n, out)
	case setxattr, getxattr:
		return a.applyXattr(n, in, out)
	case extents:
		return "", a, func(a arena) (bool, arena) { return slices.Equal(n.cells, out.cells), a }
	case clone:
		source, err := a.source(in.source, in, out)
		if err != "" {
			return err, a, nil
		}
		return a.changed(n, out, func(n *node) {
			if in.commit == wire.CommitMode_COMMIT_MODE_REPLACE {
				n.cells = nil
			}
			n.cells = append(slices.Clip(n.cells), source.cells...)
		})
	}
	return a.changed(n, out, func(n *node) {
		switch in.verb {
		case chmod:
			n.mode = in.mode
		case chown:
			if in.owns&wire.SetAttrField_SET_ATTR_UID != 0 {
				n.owner.uid = in.owner.uid
			}
			if in.owns&wire.SetAttrField_SET_ATTR_GID != 0 {
				n.owner.gid = in.owner.gid
			}
		case truncate:
			n.resize(in.size)
		case commit:
			n.lay(in)
		}
	})
}

// changed is the state with n changed by change.
func (a arena) changed(n *node, out output, change func(*node)) (string, arena, func(arena) (bool, arena)) {
	other := *n
	change(&other)
	return "", a.swap(n, &other), describes(&other, out)
}

func (n *node) resize(size int) {
	cells := make([]cell, size)
	copy(cells, n.cells)
	n.cells = cells
}

// lay puts one extent over a file.
func (n *node) lay(in input) {
	at := in.offset
	switch in.commit {
	case wire.CommitMode_COMMIT_MODE_REPLACE:
		n.cells, at = nil, 0
	case wire.CommitMode_COMMIT_MODE_APPEND:
		at = len(n.cells)
	}
	n.resize(max(len(n.cells), at+in.length))
	for i := range in.length {
		n.cells[at+i] = cell{in.stripe, uint64(i)}
	}
}

func (a arena) applyCreate(in input, out output) (string, arena, func(arena) (bool, arena)) {
	i, dir := a.place(in.in, in.slot), in.verb == mkdir
	if i < 0 {
		return notFound, a, nil
	}
	have := a.at[i]
	switch {
	case have == nil:
		n := &node{id: out.id, dir: dir, mode: in.mode}
		if in.verb == symlink {
			n.mode, n.target = 0o777, in.value
		}
		a.at[i] = n
		return "", a, describes(n, out)
	case in.exclusive || in.verb == symlink:
		return exists, a, nil
	case have.dir && !dir:
		return isDir, a, nil
	case have.dir != dir || have.target != "":
		return exists, a, nil
	}
	return "", a, describes(have, out)
}

// applySave gives a file without a name its content and its name. Such a file dies
// with its session, about which the model knows nothing. So, where sessions end, a
// possible answer is always that it does not exist or belongs to another session.
// Nothing changes then.
func (a arena) applySave(in input, out output) (string, arena, func(arena) (bool, arena)) {
	if (out.err == notFound || out.err == denied) && !in.calm {
		return out.err, a, nil
	}
	i := a.place(in.in, in.slot)
	if err := a.mayName(i, in); in.verb == concat && err != "" {
		return err, a, nil
	}
	gone := a.find(in.consume)
	if in.consume != 0 && gone == nil {
		return notFound, a, nil
	}
	n := &node{id: in.id, mode: in.mode}
	if in.source == 0 {
		n.lay(in)
	}
	for _, id := range []uint64{in.source, in.second} {
		if id == 0 {
			continue
		}
		source, err := a.source(id, in, out)
		if err != "" {
			return err, a, nil
		}
		n.cells = append(slices.Clip(n.cells), source.cells...)
	}
	if err := a.mayName(i, in); err != "" {
		return err, a, nil
	}
	if a.at[i] != nil {
		a = a.keeping(i, in)
	}
	if in.consume != 0 {
		j := slices.Index(a.at[:], gone)
		a = a.keeping(j, input{}).without(j)
	}
	a.at[i] = n
	return "", a, describes(n, out)
}

// mayName says why a save may not give its name; "" if it may.
func (a arena) mayName(i int, in input) string {
	if i < 0 {
		return notFound
	}
	switch have := a.at[i]; {
	case have == nil:
		return ""
	case have.dir:
		return isDir
	case !in.replace || have.target != "":
		return exists
	}
	return ""
}

func (a arena) applyRename(in input) (string, arena, func(arena) (bool, arena)) {
	i, j := a.place(in.in, in.slot), a.place(in.toIn, in.to)
	if i < 0 || j < 0 {
		return notFound, a, nil
	}
	from, to := a.at[i], a.at[j]
	switch {
	case from == nil:
		return notFound, a, nil
	case from == to:
		return "", a, nil
	case to != nil && in.noReplace:
		return exists, a, nil
	case in.exchange && to == nil:
		return notFound, a, nil
	case in.exchange:
		return "", a.exchanged(i, j), nil
	case to != nil && to.dir && !from.dir:
		return isDir, a, nil
	case to != nil && !to.dir && from.dir:
		return notDir, a, nil
	case a.full(j):
		return notEmpty, a, nil
	}
	if to != nil {
		a = a.keeping(j, in)
	}
	a.at[j] = nil
	return "", a.exchanged(i, j), nil
}

// exchanged is the state with two places exchanged, directories with their
// contents, which only slots have.
func (a arena) exchanged(i, j int) arena {
	a.at[i], a.at[j] = a.at[j], a.at[i]
	if i < slots && j < slots {
		x, y := a.children(i), a.children(j)
		for k := range x {
			x[k], y[k] = y[k], x[k]
		}
	}
	return a
}

func (a arena) applyRemove(in input, out output) (string, arena, func(arena) (bool, arena)) {
	i := a.place(in.in, in.slot)
	if i < 0 || a.at[i] == nil {
		return notFound, a, nil
	}
	switch n := a.at[i]; {
	case in.verb == unlink && n.dir:
		return isDir, a, nil
	case in.verb != unlink && !n.dir:
		return notDir, a, nil
	case in.verb == rmdir && a.full(i):
		return notEmpty, a, nil
	}
	if in.verb != rmtree && !out.unknown {
		// The answer names the inode, which may have been unknown so far.
		ok, known, _ := a.is(a.at[i], out.id)
		return "", known.removed(i, in), func(a arena) (bool, arena) { return ok, a }
	}
	return "", a.removed(i, in), nil
}

// removed is without, for an operation that may keep the removed file.
func (a arena) removed(i int, in input) arena {
	a = a.keeping(i, in)
	return a.without(i)
}

func (a arena) applyXattr(n *node, in input, out output) (string, arena, func(arena) (bool, arena)) {
	switch {
	case in.verb == getxattr && !n.marked:
		return noAttr, a, nil
	case in.verb == getxattr:
		return "", a, func(a arena) (bool, arena) { return n.xattr == out.value, a }
	case in.create && n.marked:
		return exists, a, nil
	case (in.replace || in.remove) && !n.marked:
		return noAttr, a, nil
	}
	other := *n
	other.marked, other.xattr = !in.remove, in.value
	if in.remove {
		other.xattr = ""
	}
	return "", a.swap(n, &other), nil
}

func (a arena) applyLook(in input, out output) (string, arena, func(arena) (bool, arena)) {
	i := a.place(in.in, in.slot)
	switch {
	case i < 0 && a.isDoomed(in.in):
		return out.err, a, nil
	case i < 0 || in.verb == lookup && a.at[i] == nil:
		return notFound, a, nil
	case in.verb == lookup:
		return "", a, describes(a.at[i], out)
	case in.in != 0:
		first := i - in.slot%kidsOfDir
		return "", a, func(a arena) (bool, arena) { return a.listed(first, kids, out.entries) }
	}
	return "", a, func(a arena) (bool, arena) { return a.listed(in.dir*namesOfDir, names, out.entries) }
}

// listed reports whether entries are those of a directory, whose names are
// consecutive from first on.
func (a arena) listed(first int, names []string, entries []output) (bool, arena) {
	n := 0
	for k, name := range names {
		have := a.at[first+k]
		if have == nil {
			continue
		}
		if n == len(entries) || entries[n].name != name {
			return false, a
		}
		var ok bool
		if ok, a = a.described(have, entries[n]); !ok {
			return false, a
		}
		n++
	}
	return n == len(entries), a
}
