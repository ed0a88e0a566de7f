package ops

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/morainefs/moraine/transport/wire"
)

// describeAll reads the options of all requests. It panics with what to write into metadata.proto
// if one lacks an option, or has a wrong one.
func describeAll(requests protoreflect.OneofDescriptor) []*Op {
	fields := requests.Fields()
	out := make([]*Op, fields.Len())
	var wrong []error
	for i := range fields.Len() {
		o, err := describe(fields.Get(i))
		if err != nil {
			wrong = append(wrong, fmt.Errorf("metadata.proto: request %s: %w", fields.Get(i).Name(), err))
		}
		if out[i] = o; o != nil {
			o.Index = i
		}
	}
	if wrong != nil {
		panic(errors.Join(wrong...))
	}
	return out
}

// describe reads the option of one request.
func describe(f protoreflect.FieldDescriptor) (*Op, error) {
	w, _ := proto.GetExtension(f.Options(), wire.E_Operation).(*wire.Operation)
	if w == nil {
		return nil, errors.New("it needs an option: [(operation) = {effect: ..., callers: ..., scope: ...}], see operation.proto")
	}
	o := &Op{Number: f.Number(), Name: string(f.Name()), field: f,
		Effect: w.Effect, Callers: w.Callers, Scope: w.Scope, Routing: w.Routing,
		Session: w.Session, Owned: w.Owned, Grows: w.Grows, Leased: w.Leased,
		readOnly: w.ReadOnly, unnumbered: w.Unnumbered, unlogged: w.Unlogged}
	if err := o.findFields(w); err != nil {
		return nil, err
	}
	return o, o.check()
}

// findFields finds the fields that an option names.
func (o *Op) findFields(w *wire.Operation) (err error) {
	if o.field.Kind() != protoreflect.MessageKind {
		return errors.New("it must be a message")
	}
	m := o.field.Message()
	if o.readOnlyIf, err = boolField(m, "read_only_if", w.ReadOnlyIf); err != nil {
		return err
	}
	if o.readUnless, err = boolField(m, "read_unless", w.ReadUnless); err != nil {
		return err
	}
	if f := m.Fields().ByName("wait_millis"); f != nil {
		if f.Kind() != protoreflect.Uint32Kind && f.Kind() != protoreflect.Uint64Kind {
			return errors.New("wait_millis must be uint32 or uint64")
		}
		o.wait = f
	}
	if w.Sender != "" {
		o.sender, err = stringPath(m, w.Sender)
	}
	return err
}

func boolField(m protoreflect.MessageDescriptor, option, name string) (protoreflect.FieldDescriptor, error) {
	if name == "" {
		return nil, nil
	}
	f := m.Fields().ByName(protoreflect.Name(name))
	if f == nil || f.Kind() != protoreflect.BoolKind || f.IsList() {
		return nil, fmt.Errorf("%s: %q must name a bool field of %s", option, name, m.Name())
	}
	return f, nil
}

// stringPath finds the fields of a path such as host.id.
func stringPath(m protoreflect.MessageDescriptor, path string) (out []protoreflect.FieldDescriptor, err error) {
	names := strings.Split(path, ".")
	for i, name := range names {
		want := protoreflect.MessageKind
		if i == len(names)-1 {
			want = protoreflect.StringKind
		}
		f := m.Fields().ByName(protoreflect.Name(name))
		if f == nil || f.Kind() != want || f.Cardinality() == protoreflect.Repeated {
			return nil, fmt.Errorf("sender: %q must lead to a string field: %s has no %v %s", path, m.Name(), want, name)
		}
		out, m = append(out, f), f.Message()
	}
	return out, nil
}

// check refuses an option that lacks a required property, or whose properties contradict each
// other.
func (o *Op) check() error {
	command, read := o.Effect == wire.Operation_COMMAND, o.Effect == wire.Operation_READ
	for _, rule := range []struct {
		broken bool
		text   string
	}{
		{o.Effect == 0, "say its effect: READ, STATUS, COMMAND or ACTION"},
		{o.Callers == 0, "say its callers: ADMINS, PEOPLE, SERVERS, ANYONE or METADATA"},
		{o.Scope == 0, "say its scope: TREE, OWN or SERVICE"},
		{o.readOnly && o.Effect != wire.Operation_COMMAND && o.Effect != wire.Operation_ACTION, "a read-only certificate always permits a READ and a STATUS: remove read_only"},
		{!command && (o.readOnlyIf != nil || o.readUnless != nil), "only a COMMAND has read_only_if or read_unless"},
		{!command && (o.unnumbered || o.unlogged), "only a COMMAND is unnumbered or unlogged"},
		{!read && o.Leased, "only a READ is leased"},
		{o.unnumbered && o.Owned, "a client numbers the commands of what its session owns: remove unnumbered or owned"},
		{o.Owned && !o.Session, "a request that is owned needs a session: set session"},
		{(read || command) && o.Routing == wire.Operation_ANY_SERVER, "only the leader answers a READ or a COMMAND: remove ANY_SERVER"},
		{o.sender == nil && o.namesSender(), "a server sends it, and it has a field for a node: name the field in sender"},
	} {
		if rule.broken {
			return errors.New(rule.text)
		}
	}
	return nil
}

// namesSender reports whether a request of servers has a field that looks like its sender.
func (o *Op) namesSender() bool {
	if o.Callers != wire.Operation_SERVERS && o.Callers != wire.Operation_METADATA {
		return false
	}
	fields := o.field.Message().Fields()
	for _, name := range []protoreflect.Name{"host", "node", "id"} {
		if f := fields.ByName(name); f != nil && (f.Kind() == protoreflect.StringKind || f.Message() != nil && f.Message().Name() == "Host") {
			return true
		}
	}
	return false
}
