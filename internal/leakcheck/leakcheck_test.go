package leakcheck_test

import (
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/morainefs/moraine/internal/leakcheck"
)

func wait(began *sync.WaitGroup, end <-chan struct{}) {
	began.Done()
	<-end
}

// Goroutines and descriptors that a test keeps are counted and named; those
// declared idle are not.
func TestWhatIsKeptIsCounted(t *testing.T) {
	before := leakcheck.Now()
	end := make(chan struct{})
	var began sync.WaitGroup
	began.Add(7)
	for range 7 {
		go wait(&began, end)
	}
	began.Wait()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	now := leakcheck.Now()
	if n := now.Count() - before.Count(); n != 7 {
		t.Errorf("%d goroutines more, not 7", n)
	}
	if n := now.Descriptors - before.Descriptors; n != 1 {
		t.Errorf("%d descriptors more, not 1", n)
	}
	if s := now.Grown(before); !strings.HasPrefix(s, "7 more:\n") || !strings.Contains(s, "leakcheck_test.wait") {
		t.Errorf("grown: %q", s)
	}
	if n := leakcheck.Now([]string{"leakcheck_test.wait"}).Count() - before.Count(); n != 0 {
		t.Errorf("%d goroutines more beside the idle ones", n)
	}
	if n := leakcheck.Now([]string{"leakcheck_test.wait", "!leakcheck_test.wait"}).Count() - before.Count(); n != 7 {
		t.Errorf("%d goroutines more, of which none is idle", n)
	}
	if n := now.Take("leakcheck_test.wait", "!leakcheck_test.none"); n != 7 || now.Count() != before.Count() {
		t.Errorf("%d goroutines were taken, and %d are left of %d", n, now.Count(), before.Count())
	}
	close(end)
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}
