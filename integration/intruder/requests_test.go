package intruder_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/morainefs/moraine/transport/wire"
)

// attempt is one request in two forms: with references to foreign things, and with
// references to missing ones.
type attempt struct {
	name             string
	foreign, missing *wire.MetaRequest
}

// ops returns the requests of the metadata service.
func ops() protoreflect.FieldDescriptors {
	return (&wire.MetaRequest{}).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
}

// builder fills in a request. It takes the n-th reference from other if only is n
// or negative; the rest is the caller's own.
type builder struct {
	t          *testing.T
	own, other refs
	only, n    int
	dirs       bool // inodes are directories
	stripe     *wire.Stripe
}

func (b *builder) pick(get func(r *refs) uint64) uint64 {
	b.n++
	if b.only < 0 || b.only == b.n-1 {
		return get(&b.other)
	}
	return get(&b.own)
}

func (b *builder) names() *refs {
	if b.only < 0 {
		return &b.other
	}
	return &b.own
}

// ofDirectories are the requests whose inode is a directory.
var ofDirectories = strings.Fields("read_dir get_usage set_quota set_policy get_policy clone_tree grant delegate")

// build returns the request of a field with references to own things, except as
// builder says.
func (b *builder) build(f protoreflect.FieldDescriptor) *wire.MetaRequest {
	m := &wire.MetaRequest{}
	b.dirs = slices.Contains(ofDirectories, string(f.Name()))
	b.n = 0
	b.fill(m.ProtoReflect().Mutable(f).Message(), 4)
	b.complete(m)
	return m
}

// complete adds the arguments without which a request has no meaning.
func (b *builder) complete(m *wire.MetaRequest) {
	switch r := m.Op.(type) {
	case *wire.MetaRequest_OpenSession:
		r.OpenSession.Nonce, r.OpenSession.Scope = []byte("0123456789abcdef"), "/b"
	case *wire.MetaRequest_Create:
		r.Create.Target, r.Create.Xattrs = "", nil
		r.Create.Tenant = ""
	case *wire.MetaRequest_SetXattr:
		r.SetXattr.Name = "user.x"
	case *wire.MetaRequest_SetLock:
		r.SetLock.Lock = &wire.FileLock{End: 100}
	case *wire.MetaRequest_GetLock:
		r.GetLock.Lock = &wire.FileLock{End: 100}
	case *wire.MetaRequest_AwaitLock:
		r.AwaitLock.Lock, r.AwaitLock.WaitMillis = &wire.FileLock{End: 100}, 0
	case *wire.MetaRequest_GetXattr:
		r.GetXattr.Name = ""
	case *wire.MetaRequest_Remove:
		r.Remove.Expect = nil
	case *wire.MetaRequest_SetAttr:
		r.SetAttr.Valid = uint32(wire.SetAttrField_SET_ATTR_MODE)
	case *wire.MetaRequest_Grant:
		r.Grant.Scheme, r.Grant.Avoid = nil, nil
	case *wire.MetaRequest_Place:
		r.Place.Scheme, r.Place.Keep, r.Place.Avoid = &wire.Scheme{K: 2, M: 1}, nil, nil
	case *wire.MetaRequest_QueueMove:
		r.QueueMove.Kind = wire.JobKind_JOB_KIND_FLUSH
	case *wire.MetaRequest_SetPolicy:
		r.SetPolicy.Policy.Scheme, r.SetPolicy.Policy.Checkpoint = nil, nil
	case *wire.MetaRequest_Commit:
		stripe := proto.CloneOf(b.stripe)
		stripe.Id = r.Commit.Stripes[0].Id
		r.Commit.Link, r.Commit.NewFile, r.Commit.Stripes = nil, nil, []*wire.Stripe{stripe}
		for _, e := range r.Commit.Extents {
			e.Length, e.Object, e.Stripe = 10, 0, stripe.Id
		}
	case *wire.MetaRequest_Clone:
		r.Clone.Mode, r.Clone.Link = wire.CommitMode_COMMIT_MODE_REPLACE, nil
	case *wire.MetaRequest_Batch:
		b.completeBatch(r.Batch)
	case *wire.MetaRequest_Concat:
		r.Concat.Link.Expect = nil
		r.Concat.Consume = 0
	case *wire.MetaRequest_ResolveStep:
		r.ResolveStep.Before = nil
	case *wire.MetaRequest_AdoptStep:
		r.AdoptStep.Format = wire.CheckpointFormat_CHECKPOINT_FORMAT_DCP
	case *wire.MetaRequest_Leases:
		r.Leases.Begin, r.Leases.Epoch = true, 1
	}
}

// completeBatch gives a batch one change of each kind.
func (b *builder) completeBatch(batch *wire.Batch) {
	batch.Ops = nil
	kinds := (&wire.BatchOp{}).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	for i := range kinds.Len() {
		op := &wire.BatchOp{}
		b.fill(op.ProtoReflect().Mutable(kinds.Get(i)).Message(), 3)
		if c := op.GetCommit(); c != nil {
			c.Mode, c.Stripes, c.Extents, c.Link = wire.CommitMode_COMMIT_MODE_REPLACE, nil, nil, nil
		}
		batch.Ops = append(batch.Ops, op)
	}
}

func (b *builder) fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap() || f.ContainingOneof() != nil && !f.ContainingOneof().IsSynthetic():
		case f.Message() != nil && depth == 0:
		case f.Message() != nil && f.IsList():
			b.fill(m.Mutable(f).List().AppendMutable().Message(), depth-1)
		case f.Message() != nil:
			b.fill(m.Mutable(f).Message(), depth-1)
		default:
			v, ok := b.scalar(f)
			if ok && f.IsList() {
				m.Mutable(f).List().Append(v)
			} else if ok {
				m.Set(f, v)
			}
		}
	}
}

// scalar is the value of a field; not ok: it stays unset. References are all of
// kind fixed64, with a name that is known here.
func (b *builder) scalar(f protoreflect.FieldDescriptor) (v protoreflect.Value, ok bool) {
	switch f.Kind() {
	case protoreflect.Fixed64Kind:
		get := b.reference(f)
		if get == nil {
			return v, false
		}
		return protoreflect.ValueOfUint64(b.pick(get)), true
	case protoreflect.StringKind:
		s := b.text(f)
		return protoreflect.ValueOfString(s), s != ""
	case protoreflect.Uint32Kind:
		n, ok := map[protoreflect.Name]uint32{"device": b.foreignDevice(), "devices": b.foreignDevice(), "limit": 100, "count": 1, "attempt": 1, "world": 1, "version": 2}[f.Name()]
		return protoreflect.ValueOfUint32(n), ok
	case protoreflect.Uint64Kind:
		n, ok := map[protoreflect.Name]uint64{"step": 7, "length": 10, "lease_epoch": 1, "generation": 0}[f.Name()]
		return protoreflect.ValueOfUint64(n), ok
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true), slices.Contains([]protoreflect.Name{"all", "ended", "want_token", "read_only", "exact", "exclusive", "capability"}, f.Name())
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1), true
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(make([]byte, 32)), f.Name() == "digest"
	}
	return v, false
}

func (b *builder) foreignDevice() uint32 { return b.other.device }

func (b *builder) reference(f protoreflect.FieldDescriptor) func(*refs) uint64 {
	in := string(f.ContainingMessage().Name())
	switch string(f.Name()) {
	case "inode", "also":
		if b.dirs {
			return func(r *refs) uint64 { return r.dir }
		}
		return func(r *refs) uint64 { return r.file }
	case "inodes", "held", "returned", "settled", "ending":
		return func(r *refs) uint64 { return r.file }
	case "parent", "new_parent", "directory", "consume", "dir", "deferred_for":
		return func(r *refs) uint64 { return r.dir }
	case "stripe", "stripes", "first", "after_stripe", "to", "packed", "done":
		return func(r *refs) uint64 { return r.stripe }
	case "from":
		if in == "Walk" {
			return func(r *refs) uint64 { return r.dir }
		}
		return func(r *refs) uint64 { return r.stripe }
	case "object":
		return func(r *refs) uint64 { return r.object }
	case "job":
		return func(r *refs) uint64 { return r.job }
	case "run":
		return func(r *refs) uint64 { return r.run }
	case "id":
		switch in {
		case "Stripe":
			return func(r *refs) uint64 { return r.stripe }
		case "Object":
			return func(r *refs) uint64 { return r.object }
		case "ListJobs", "CancelJob", "RenewJob", "FinishJob":
			return func(r *refs) uint64 { return r.job }
		}
	case "after", "session", "backup", "owner", "inline":
		return nil
	}
	b.t.Errorf("%s is a reference that this test does not know: say what it refers to", f.FullName())
	return nil
}

func (b *builder) text(f protoreflect.FieldDescriptor) string {
	in := string(f.ContainingMessage().Name())
	switch string(f.Name()) {
	case "name", "path":
		if in == "ListRuns" || in == "OpenRun" {
			return b.names().run1
		}
		return b.names().name
	case "new_name":
		return "taken"
	case "host", "node":
		return b.other.host
	case "id":
		return b.other.host
	case "launch", "job", "bucket", "key", "serial", "prefix", "reason":
		return "x"
	}
	return ""
}

func (w *world) builder(other refs, only int) *builder {
	return &builder{t: w.t, own: w.own, other: other, only: only, stripe: w.stripes[0]}
}

// attempts returns the attempts with a request: all references at once, and each
// one alone.
func (w *world) attempts(f protoreflect.FieldDescriptor) []attempt {
	var all []attempt
	for only := -1; ; only++ {
		foreign := w.builder(w.foreign, only)
		a := attempt{name: fmt.Sprintf("%s %d", f.Name(), only), foreign: foreign.build(f), missing: w.builder(w.missing, only).build(f)}
		if only >= foreign.n {
			if f.Name() == "list_lost" { // of all files, not of a checkpoint
				bare := &wire.MetaRequest{Op: &wire.MetaRequest_ListLost{ListLost: &wire.ListLost{}}}
				all = append(all, attempt{name: "list_lost without a step", foreign: bare, missing: bare})
			}
			if f.Name() == "commit" {
				all = append(all, attempt{name: "commit that makes its file", foreign: makesFile(w.foreign.dir), missing: makesFile(w.missing.dir)})
			}
			return all
		}
		// A reference that complete removed again makes no attempt.
		if only < 0 || !proto.Equal(a.foreign, w.builder(w.own, -1).build(f)) {
			all = append(all, a)
		}
	}
}

// makesFile commits a new file in a directory.
func makesFile(dir uint64) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{Mode: wire.CommitMode_COMMIT_MODE_REPLACE,
		Content: []byte("new"), NewFile: &wire.NewFile{Mode: 0o644}, Link: &wire.LinkTarget{Parent: dir, Name: "made"}}}}
}

var numeral = regexp.MustCompile(`\b[0-9a-f]*[0-9][0-9a-f]*\b`)

// plain is the text of an error without the numbers and names of its request.
func (w *world) plain(err error) string {
	if err == nil {
		return ""
	}
	s := numeral.ReplaceAllString(err.Error(), "#")
	for _, r := range []*refs{&w.foreign, &w.missing} {
		s = strings.ReplaceAll(strings.ReplaceAll(s, r.name, "NAME"), r.run1, "NAME")
	}
	return s
}

// shows returns what an answer reveals about foreign things; empty: nothing.
func (w *world) shows(req *wire.MetaRequest, resp proto.Message, err error) string {
	var found []string
	asked, _ := proto.Marshal(req)
	b, _ := proto.Marshal(resp)
	if err != nil {
		b = append(b, err.Error()...)
	}
	for _, name := range []string{w.foreign.name, w.foreign.run1, secret + "-dir", "user." + secret, secret + "-value"} {
		if strings.Contains(string(b), name) && !strings.Contains(string(asked), name) {
			found = append(found, name)
		}
	}
	if strings.Contains(string(b), fmt.Sprint(secretSize)) {
		found = append(found, "size")
	}
	f := w.foreign
	secrets := map[string][]uint64{"inode": {f.dir, f.file, f.run}, "object": {f.object}, "job": {f.job}, "session": {w.session}}
	for _, s := range w.stripes {
		secrets["stripe"] = append(secrets["stripe"], s.Id)
	}
	if resp != nil && resp.ProtoReflect().IsValid() {
		eachNumber(resp.ProtoReflect(), func(f protoreflect.FieldDescriptor, v uint64) {
			switch {
			case v == secretSize:
				found = append(found, fmt.Sprintf("size in %s", f.FullName()))
			case f.Kind() == protoreflect.Fixed64Kind && slices.Contains(secrets[category(f)], v):
				found = append(found, fmt.Sprintf("%s in %s", category(f), f.FullName()))
			}
		})
	}
	slices.Sort(found)
	return strings.Join(slices.Compact(found), ", ")
}

// category returns the kind of thing that the number in a field of an answer names.
func category(f protoreflect.FieldDescriptor) string {
	in := string(f.ContainingMessage().Name())
	switch name := string(f.Name()); {
	case in == "MemoryReply" && (name == "write" || name == "gone"):
		return "" // those of the request; only servers may ask
	case slices.Contains([]string{"stripe", "stripes", "after_stripe", "first", "packed", "stale"}, name) || in == "Stripe" && name == "id":
		return "stripe"
	case name == "object" || name == "objects" || in == "Object" && name == "id":
		return "object"
	case name == "job" || in == "Job" && name == "id":
		return "job"
	case name == "session":
		return "session"
	}
	return "inode"
}

// eachNumber calls fn with each unsigned 64-bit number of a message.
func eachNumber(m protoreflect.Message, fn func(protoreflect.FieldDescriptor, uint64)) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		one := func(v protoreflect.Value) {
			switch {
			case f.Message() != nil:
				eachNumber(v.Message(), fn)
			case f.Kind() == protoreflect.Fixed64Kind || f.Kind() == protoreflect.Uint64Kind:
				fn(f, v.Uint())
			}
		}
		switch {
		case f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				one(v.List().Get(i))
			}
		default:
			one(v)
		}
		return true
	})
}
