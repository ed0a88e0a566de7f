package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// publicPackages are the packages that programs outside this module import. They speak in types of
// their own: a message of the protocol may change with every release.
var publicPackages = []string{"client", "client/ckpt", "client/ckpt/adopt", "client/ckpt/agentproto", "client/ckpt/agentproto/fileproto", "client/ckpt/busy", "client/ckpt/localfiles", "client/ckpt/huggingface", "client/ckpt/safetensors"}

// messages is the package of the protocol's messages.
const messages = module + "/transport/wire"

// showsMessages lists the exported declarations that name messages on purpose, as
// FOLDER.NAME or FOLDER.TYPE.METHOD, with the reason, a sentence.
var showsMessages = map[string]string{}

// showsInternals lists the exported structs with a field of a type from an internal package on
// purpose, as FOLDER.NAME, with the reason, a sentence.
var showsInternals = map[string]string{}

// TestPublicStructsShowNoInternals fails on an exported struct of a public package with an exported
// field whose type is of an internal package: a program cannot name that type.
func TestPublicStructsShowNoInternals(t *testing.T) {
	found := map[string]bool{}
	eachPublicFile(t, func(folder string, f *ast.File) {
		for _, i := range f.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil || !strings.HasPrefix(p, module+"/internal/") && !strings.Contains(p, "/client/internal/") {
				continue
			}
			for _, name := range structsWith(f, importedAs(f, p)) {
				found[folder+"."+name] = true
			}
		}
	})
	for name := range found {
		if showsInternals[name] == "" {
			t.Errorf("%s has a field of a type that programs cannot name: give it a type of its package", name)
		}
	}
	for name := range showsInternals {
		if !found[name] {
			t.Errorf("%s needs no exception any more", name)
		}
	}
}

// structsWith returns the exported structs of a file that show a type of the package in a field.
func structsWith(f *ast.File, pkg string) (names []string) {
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range g.Specs {
			s, ok := spec.(*ast.TypeSpec)
			if !ok || !s.Name.IsExported() {
				continue
			}
			if _, ok := s.Type.(*ast.StructType); ok && mentions(s.Type, pkg) {
				names = append(names, s.Name.Name)
			}
		}
	}
	return names
}

// eachPublicFile calls do with each file of the public packages.
func eachPublicFile(t *testing.T, do func(folder string, f *ast.File)) {
	t.Helper()
	checked := 0
	for _, folder := range publicPackages {
		files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			checked++
			do(folder, f)
		}
	}
	if checked < 50 {
		t.Fatalf("only %d files were found", checked)
	}
}

// TestPublicAPIShowsNoMessages fails on an exported declaration of a public package that names a
// type of transport/wire.
func TestPublicAPIShowsNoMessages(t *testing.T) {
	found := map[string]bool{}
	eachPublicFile(t, func(folder string, f *ast.File) {
		for _, name := range messageNames(f) {
			found[folder+"."+name] = true
		}
	})
	for name := range found {
		if showsMessages[name] == "" {
			t.Errorf("%s names a message of transport/wire: give it a type of its package", name)
		}
	}
	for name := range showsMessages {
		if !found[name] {
			t.Errorf("%s names no message: it needs no exception any more", name)
		}
	}
}

// messageNames returns the exported declarations of a file that name a type of transport/wire in
// what a program sees of them.
func messageNames(f *ast.File) (names []string) {
	wire := importedAs(f, messages)
	if wire == "" {
		return nil
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if name, ok := exportedFunc(d); ok && mentions(d.Type, wire) {
				names = append(names, name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					if spec.Name.IsExported() && mentions(spec.Type, wire) {
						names = append(names, spec.Name.Name)
					}
				case *ast.ValueSpec:
					for i, id := range spec.Names {
						if id.IsExported() && (mentions(spec.Type, wire) || i < len(spec.Values) && mentions(spec.Values[i], wire)) {
							names = append(names, id.Name)
						}
					}
				}
			}
		}
	}
	return names
}

// exportedFunc returns the name of a function or method, and whether programs can call it.
func exportedFunc(d *ast.FuncDecl) (string, bool) {
	if d.Recv == nil {
		return d.Name.Name, d.Name.IsExported()
	}
	on := receiver(d.Recv.List[0].Type)
	return on + "." + d.Name.Name, d.Name.IsExported() && ast.IsExported(on)
}

// importedAs returns the name by which a file uses a package; empty if it does not import it.
func importedAs(f *ast.File, pkg string) string {
	for _, i := range f.Imports {
		if p, err := strconv.Unquote(i.Path.Value); err != nil || p != pkg {
			continue
		}
		if i.Name != nil {
			return i.Name.Name
		}
		return path.Base(pkg)
	}
	return ""
}

// mentions reports whether programs see a name of the package in an expression or type. They do not
// see unexported fields.
func mentions(n ast.Node, pkg string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case nil:
			return false
		case *ast.StructType:
			for _, field := range n.Fields.List {
				found = found || visible(field) && mentions(field.Type, pkg)
			}
			return false
		case *ast.SelectorExpr:
			if id, ok := n.X.(*ast.Ident); ok && id.Name == pkg {
				found = true
			}
		}
		return !found
	})
	return found
}

// visible reports whether programs see a field of a struct.
func visible(f *ast.Field) bool {
	if len(f.Names) == 0 {
		return true // embedded
	}
	for _, id := range f.Names {
		if id.IsExported() {
			return true
		}
	}
	return false
}

// TestMessagesAreFound has one exported and one unexported declaration of each kind.
func TestMessagesAreFound(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "a.go", `package a
import w "github.com/morainefs/moraine/transport/wire"
type A struct{ F *w.Attr }
type B struct{ f *w.Attr }
type c struct{ F *w.Attr }
type D struct{ w.Attr }
type E = w.Attr
type G interface{ H(w.Attr) }
type I map[string][]*w.Attr
func J(*w.Attr) {}
func k(*w.Attr) {}
func (A) L() *w.Attr { return nil }
func (c) M(*w.Attr) {}
func (A) N() { _ = w.Attr{} }
func O(yield func(*w.Attr) bool) {}
var P, q = w.X, w.X
const R w.Kind = 1
var s w.Attr`, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(messageNames(f), " "), "A D E G I J A.L O P R"; got != want {
		t.Errorf("found %s, want %s", got, want)
	}
}
