package histories_test

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// place is a name as the service knows it.
func (p *playground) place(dir uint64, slot int) (parent uint64, name string) {
	if dir != 0 {
		return dir, kids[slot%kidsOfDir]
	}
	return p.dirs[slot/namesOfDir], names[slot%namesOfDir]
}

// listed is the directory of a readdir.
func (p *playground) listed(in input) uint64 {
	if in.in != 0 {
		return in.in
	}
	return p.dirs[in.dir]
}

// request is the request for an operation.
func request(p *playground, in input, devices []uint32) *wire.MetaRequest {
	dir, name := p.place(in.in, in.slot)
	switch in.verb {
	case symlink:
		return &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: dir, Name: name, Type: wire.FileType_FILE_TYPE_SYMLINK, Target: in.value}}}
	case create, mkdir:
		typ := wire.FileType_FILE_TYPE_REGULAR
		if in.verb == mkdir {
			typ = wire.FileType_FILE_TYPE_DIRECTORY
		}
		return &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: dir, Name: name, Type: typ, Mode: in.mode, Exclusive: in.exclusive}}}
	case lookup:
		return &wire.MetaRequest{Op: &wire.MetaRequest_Lookup{Lookup: &wire.Lookup{Parent: dir, Name: name}}}
	case stat:
		return &wire.MetaRequest{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: in.id}}}
	case readdir:
		return &wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: p.listed(in), Limit: 100}}}
	case rename:
		newDir, newName := p.place(in.toIn, in.to)
		return &wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: dir, Name: name,
			NewParent: newDir, NewName: newName, NoReplace: in.noReplace, Exchange: in.exchange, Keep: in.keep}}}
	case link:
		return &wire.MetaRequest{Op: &wire.MetaRequest_Link{Link: &wire.Link{Inode: in.id, Parent: dir, Name: name}}}
	case unlink, rmdir:
		return &wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: dir, Name: name, Directory: in.verb == rmdir, Keep: in.keep}}}
	case rmtree:
		return &wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: dir, Name: name}}}
	case chmod:
		return &wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: in.id, Valid: uint32(wire.SetAttrField_SET_ATTR_MODE), Mode: in.mode}}}
	case chown:
		return &wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: in.id, Valid: uint32(in.owns), Uid: in.owner.uid, Gid: in.owner.gid}}}
	case truncate:
		return &wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: in.id, Valid: uint32(wire.SetAttrField_SET_ATTR_SIZE), Size: uint64(in.size)}}}
	case setxattr:
		return &wire.MetaRequest{Op: &wire.MetaRequest_SetXattr{SetXattr: &wire.SetXattr{Inode: in.id, Name: "user.x", Value: []byte(in.value), Create: in.create, Replace: in.replace, Remove: in.remove}}}
	case getxattr:
		return &wire.MetaRequest{Op: &wire.MetaRequest_GetXattr{GetXattr: &wire.GetXattr{Inode: in.id, Name: "user.x"}}}
	case clone:
		return cloneRequest(in, nil)
	case concat:
		ranges := []*wire.CloneRange{{Inode: in.source}}
		if in.second != 0 {
			ranges = append(ranges, &wire.CloneRange{Inode: in.second})
		}
		return &wire.MetaRequest{Op: &wire.MetaRequest_Concat{Concat: &wire.Concat{Inode: in.id, Ranges: ranges, Consume: in.consume,
			Link: &wire.LinkTarget{Parent: dir, Name: name, Replace: in.replace}}}}
	case save:
		l := &wire.LinkTarget{Parent: dir, Name: name, Replace: in.replace, Keep: in.keep}
		if in.source != 0 {
			return cloneRequest(in, l)
		}
		return commitRequest(in, devices, l)
	case cloneTree:
		return &wire.MetaRequest{Op: &wire.MetaRequest_CloneTree{CloneTree: &wire.CloneTree{Inode: p.tree, Parent: dir, Name: name}}}
	case extents:
		return &wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: in.id, Limit: 1000}}}
	}
	return commitRequest(in, devices, nil)
}

func cloneRequest(in input, link *wire.LinkTarget) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_Clone{Clone: &wire.Clone{Inode: in.id, Mode: in.commit, Link: link, Ranges: []*wire.CloneRange{{Inode: in.source}}}}}
}

func commitRequest(in input, devices []uint32, link *wire.LinkTarget) *wire.MetaRequest {
	stripe := &wire.Stripe{Id: in.stripe, Scheme: &wire.Scheme{K: 1, M: uint32(len(devices) - 1)}, Length: uint64(in.length)}
	for i, d := range devices {
		stripe.Chunks = append(stripe.Chunks, &wire.ChunkState{Device: d, Crc: uint32(in.stripe)*31 + uint32(i), Level: uint32(moraine.NVMe)})
	}
	return &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{Inode: in.id, Mode: in.commit, Level: uint32(moraine.NVMe), Link: link,
		Stripes: []*wire.Stripe{stripe}, Extents: []*wire.Extent{{Offset: uint64(in.offset), Length: uint64(in.length), Stripe: in.stripe}}}}}
}

// definite are the errors that determine the outcome of an operation.
var definite = map[moraine.Kind]string{moraine.NotFound: notFound, moraine.Exists: exists, moraine.IsDirectory: isDir,
	moraine.NotDirectory: notDir, moraine.NoAttribute: noAttr, moraine.NotEmpty: notEmpty, moraine.PermissionDenied: denied}

// answer is a client's answer.
func answer(in input, resp *wire.MetaResponse, err error) output {
	if err != nil {
		text, ok := definite[moraine.KindOf(err)]
		return output{err: text, unknown: !ok}
	}
	var out output
	switch in.verb {
	case readdir:
		for _, e := range resp.GetReadDir().GetEntries() {
			o := attributes(e.GetAttr())
			o.name = e.GetName()
			out.entries = append(out.entries, o)
		}
	case unlink, rmdir:
		out.id = resp.GetRemove().GetInode()
	case getxattr:
		out.value = string(resp.GetXattr().GetValue())
	case commit, clone, save, concat:
		if resp.GetCommit() == nil {
			return output{unknown: true} // it is a job, which continues
		}
		out = attributes(resp.GetCommit().GetAttr())
	case extents:
		r := resp.GetExtents()
		out.cells = make([]cell, r.GetAttr().GetSize())
		for _, e := range r.GetExtents() {
			for i := range e.Length {
				out.cells[e.Offset+i] = cell{e.Stripe, e.StripeOffset + i}
			}
		}
	case rename, setxattr, rmtree, cloneTree:
	default:
		out = attributes(resp.GetEntry().GetAttr())
	}
	return out
}

func attributes(a *wire.Attr) output {
	return output{id: a.GetInode(), dir: a.GetType() == wire.FileType_FILE_TYPE_DIRECTORY, mode: a.GetMode(), owner: owner{a.GetUid(), a.GetGid()}, target: a.GetTarget(), nlink: a.GetNlink(), size: a.GetSize()}
}
