package lint

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"
	"testing"
)

// publicPackages are the packages that programs outside this module import. They speak in types of
// their own: a message of the protocol may change with every release, and a program cannot name a type
// of an internal package.
var publicPackages = []string{".", "client", "client/ckpt", "client/ckpt/adopt", "client/ckpt/agentproto", "client/ckpt/agentproto/fileproto", "client/ckpt/busy", "client/ckpt/localfiles", "client/ckpt/huggingface", "client/ckpt/readonce", "client/ckpt/safetensors"}

// messages is the package of the protocol's messages.
const messages = module + "/transport/wire"

// showsInternals lists the exported declarations that show a message or a type of an internal package
// on purpose, as FOLDER.NAME or FOLDER.TYPE.MEMBER, with the reason, a sentence.
var showsInternals = map[string]string{}

// TestPublicAPIShowsNoInternals fails on an exported function, method, field, variable or type of a
// public package whose type is a message of transport/wire or of an internal package, also through an
// alias, an embedded struct, or an unexported type that a program gets.
func TestPublicAPIShowsNoInternals(t *testing.T) {
	source := newSource()
	found := map[string]bool{}
	exported := 0
	for _, folder := range publicPackages {
		pkg, err := source.Import(strings.TrimSuffix(module+"/"+folder, "/."))
		if err != nil {
			t.Fatal(err)
		}
		names, count := shown(pkg)
		exported += count
		for _, name := range names {
			found[folder+"."+name] = true
		}
	}
	if exported < 500 {
		t.Fatalf("only %d declarations were found", exported)
	}
	for name := range found {
		if showsInternals[name] == "" {
			t.Errorf("%s shows a message of transport/wire or a type of an internal package: give it a type of its package", name)
		}
	}
	for name := range showsInternals {
		if !found[name] {
			t.Errorf("%s needs no exception any more", name)
		}
	}
}

// hidden reports whether a package is one whose types programs must not see.
func hidden(pkg *types.Package) bool {
	return pkg != nil && (pkg.Path() == messages || slices.Contains(strings.Split(pkg.Path(), "/"), "internal"))
}

// shown returns the exported declarations of a package that show a hidden type, and how many there are.
func shown(pkg *types.Package) (names []string, count int) {
	for _, name := range pkg.Scope().Names() {
		if !ast.IsExported(name) {
			continue
		}
		obj := pkg.Scope().Lookup(name)
		count++
		if tn, ok := obj.(*types.TypeName); ok && !tn.IsAlias() {
			members, n := shownMembers(tn.Type().(*types.Named))
			count += n
			for _, m := range members {
				names = append(names, strings.TrimSuffix(name+"."+m, "."))
			}
			continue
		}
		if (surface{}).shows(obj.Type()) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, count
}

// shownMembers returns the exported fields and methods of a type that show a hidden one, promoted methods
// too; an empty name if the type is made of one.
func shownMembers(t *types.Named) (names []string, count int) {
	if (surface{}).showsAny(t.TypeParams().Len(), func(i int) types.Type { return t.TypeParams().At(i).Constraint() }) {
		names = append(names, "")
	}
	switch u := t.Underlying().(type) {
	case *types.Struct:
		for i := range u.NumFields() {
			if f := u.Field(i); f.Exported() || f.Embedded() {
				count++
				if (surface{}).shows(f.Type()) {
					names = append(names, f.Name())
				}
			}
		}
	default:
		if (surface{}).shows(u) {
			names = append(names, "")
		}
	}
	for _, m := range methodsOf(t) {
		count++
		if (surface{}).shows(m.Type()) {
			names = append(names, m.Name())
		}
	}
	return names, count
}

// methodsOf returns the exported methods of a type and of pointers to it.
func methodsOf(t *types.Named) (out []*types.Func) {
	if types.IsInterface(t) {
		return nil // they are those of the underlying type
	}
	for m := range types.NewMethodSet(types.NewPointer(t)).Methods() {
		if f := m.Obj().(*types.Func); f.Exported() {
			out = append(out, f)
		}
	}
	return out
}

// surface is the unexported types whose surface has been looked at.
type surface map[*types.Named]bool

// shows reports whether a program that has a value of a type can see a hidden one by it. Exported types
// of other packages are not looked into.
func (s surface) shows(t types.Type) bool {
	switch t := t.(type) {
	case *types.Alias:
		return hidden(t.Obj().Pkg()) || s.shows(t.Rhs())
	case *types.Named:
		return s.showsNamed(t)
	case interface{ Elem() types.Type }: // pointers, slices, arrays, maps, channels
		m, isMap := t.(*types.Map)
		return s.shows(t.Elem()) || isMap && s.shows(m.Key())
	case *types.Signature:
		return s.shows(t.Params()) || s.shows(t.Results()) || s.showsAny(t.TypeParams().Len(), func(i int) types.Type { return t.TypeParams().At(i).Constraint() })
	case *types.Tuple:
		return s.showsAny(t.Len(), func(i int) types.Type { return t.At(i).Type() })
	case *types.Struct:
		return s.showsAny(t.NumFields(), func(i int) types.Type {
			if f := t.Field(i); f.Exported() || f.Embedded() {
				return f.Type()
			}
			return nil
		})
	case *types.Interface:
		return s.showsAny(t.NumEmbeddeds(), t.EmbeddedType) ||
			s.showsAny(t.NumExplicitMethods(), func(i int) types.Type {
				if m := t.ExplicitMethod(i); m.Exported() {
					return m.Type()
				}
				return nil
			})
	case *types.Union:
		return s.showsAny(t.Len(), func(i int) types.Type { return t.Term(i).Type() })
	}
	return false
}

func (s surface) showsAny(n int, at func(int) types.Type) bool {
	for i := range n {
		if s.shows(at(i)) {
			return true
		}
	}
	return false
}

// showsNamed is shows of a type with a name: it is hidden, or has a hidden type argument, or has no
// exported name and a program sees its fields and methods only where it gets a value.
func (s surface) showsNamed(t *types.Named) bool {
	if hidden(t.Obj().Pkg()) || s.showsAny(t.TypeArgs().Len(), t.TypeArgs().At) {
		return true
	}
	if t.Obj().Exported() || t.Obj().Pkg() == nil || s[t] {
		return false
	}
	s[t] = true
	methods := methodsOf(t)
	return s.shows(t.Underlying()) || s.showsAny(len(methods), func(i int) types.Type { return methods[i].Type() })
}
