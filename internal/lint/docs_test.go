package lint

import (
	"encoding/json"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is the top of the tree, from this package.
const root = "../.."

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```")
)

// TestLinksLeadSomewhere follows every relative link of every page, up to the
// heading if it names one.
func TestLinksLeadSomewhere(t *testing.T) {
	pages := files(t, ".md")
	if len(pages) < 10 {
		t.Fatalf("only %d pages were found", len(pages))
	}
	for _, page := range pages {
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(read(t, page), ""), -1) {
			u, err := url.Parse(m[1])
			if err != nil {
				t.Errorf("%s: %v", page, err)
				continue
			}
			if u.IsAbs() {
				continue
			}
			target := page
			if u.Path != "" {
				target = filepath.Join(filepath.Dir(page), u.Path)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
			} else if u.Fragment != "" && !anchors(read(t, target))[u.Fragment] {
				t.Errorf("%s links to %s: the page has no such heading", page, m[1])
			}
		}
	}
}

// anchors are the names of a page's headings, as GitHub makes them.
func anchors(page string) map[string]bool {
	names := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_':
				return r
			case r == ' ':
				return '-'
			}
			return -1
		}, strings.ToLower(m[1]))
		names[name] = true
	}
	return names
}

// TestFormatsAreIndexed compares docs/formats/README.md with the pages beside it.
func TestFormatsAreIndexed(t *testing.T) {
	index := read(t, "docs/formats/README.md")
	pages, err := filepath.Glob(filepath.Join(root, "docs/formats/*.md"))
	if err != nil || len(pages) < 5 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, p := range pages {
		if name := filepath.Base(p); name != "README.md" && !strings.Contains(index, "("+name+")") {
			t.Errorf("docs/formats/README.md lacks %s", name)
		}
	}
}

// TestDependenciesAreExplained compares docs/DEPENDENCIES.md with the direct
// requirements of go.mod and their versions.
func TestDependenciesAreExplained(t *testing.T) {
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod struct {
		Require []struct {
			Path, Version string
			Indirect      bool
		}
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	page, direct := read(t, "docs/DEPENDENCIES.md"), map[string]string{}
	for _, r := range mod.Require {
		if r.Indirect {
			continue
		}
		name := majorSuffix.ReplaceAllString(strings.TrimPrefix(r.Path, "github.com/"), "")
		direct[name] = r.Version
		if !versioned(page, name, r.Version) {
			t.Errorf("docs/DEPENDENCIES.md lacks %s %s", name, r.Version)
		}
	}
	for _, m := range listed.FindAllStringSubmatch(page, -1) {
		if _, ok := direct[m[1]]; !ok {
			t.Errorf("docs/DEPENDENCIES.md has %s, which go.mod does not require directly", m[1])
		}
	}
}

var (
	majorSuffix = regexp.MustCompile(`/v[0-9]+$`)
	// listed is a library as a table names it: a link, or bare.
	listed = regexp.MustCompile(`(?m)(?:^\| |, )\[?([a-z0-9.]+(?:/[A-Za-z0-9._-]+)+)\]?(?:\([^)]*\))? v[0-9]`)
)

// versioned reports whether a line of the page names a library with its version.
func versioned(page, name, version string) bool {
	return regexp.MustCompile(regexp.QuoteMeta(name) + `\]?(\([^)]*\))? ` + regexp.QuoteMeta(version) + `[\s,|]`).MatchString(page)
}

// files returns the paths below the root that end with suffix, except hidden
// folders and build outputs.
func files(t *testing.T, suffix string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "bin" || name == "shared" || name == "testdata") {
			return filepath.SkipDir
		}
		if !d.IsDir() && strings.HasSuffix(name, suffix) {
			rel, err := filepath.Rel(root, path)
			found = append(found, rel)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
