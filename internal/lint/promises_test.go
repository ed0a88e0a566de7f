package lint

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// notPromised is the page of what a reader may not rely on. Its items need no tests.
const notPromised = "docs/semantics/not-promised.md"

var (
	// testName is how a promise names a test: `folder.TestName`.
	testName = regexp.MustCompile("`([a-z0-9/]+)\\.(Test[A-Za-z0-9_]+)`")
	// anyTest is a test named in any way.
	anyTest = regexp.MustCompile(`Test[A-Z0-9_]`)
	// endOfItem is where the paragraphs of a list item end.
	endOfItem = regexp.MustCompile(`\n\n[^ ]`)
)

// TestPromisesHaveTests fails when a promise of docs/SEMANTICS.md, or of docs/semantics,
// names no test, or one that is not in the tree.
func TestPromisesHaveTests(t *testing.T) {
	tests, promises := testsInTree(t), 0
	for _, page := range append(promisePages(t), "docs/SEMANTICS.md") {
		text, _, _ := strings.Cut(read(t, page), "\n## Not promised yet")
		for _, m := range testName.FindAllStringSubmatch(text, -1) {
			if !tests[m[1]+"."+m[2]] {
				t.Errorf("%s names %s.%s, which does not exist", page, m[1], m[2])
			}
		}
		if len(anyTest.FindAllString(text, -1))-strings.Count(text, "package.TestName") != len(testName.FindAllString(text, -1)) {
			t.Errorf("%s names a test in another way than `folder.TestName`", page)
		}
		for _, item := range strings.Split(text, "\n- ")[1:] {
			if end := endOfItem.FindStringIndex(item); end != nil {
				item = item[:end[0]]
			}
			promises++
			if !testName.MatchString(item) {
				t.Errorf("%s: no test holds %q", page, item)
			}
		}
	}
	if promises < 300 {
		t.Errorf("only %d promises were found", promises)
	}
}

// promisePages returns the pages of docs/semantics that promise something.
func promisePages(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join(root, "docs/semantics/*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	var found []string
	for _, p := range pages {
		if page := "docs/semantics/" + filepath.Base(p); page != notPromised {
			found = append(found, page)
		}
	}
	return found
}

// declared is the beginning of a test.
var declared = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`)

// testsInTree returns every test as folder.TestName.
func testsInTree(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, file := range files(t, "_test.go") {
		for _, m := range declared.FindAllStringSubmatch(read(t, file), -1) {
			found[filepath.ToSlash(filepath.Dir(file))+"."+m[1]] = true
		}
	}
	return found
}
