package twomounts_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// envTask makes the test binary carry out a task instead of its tests.
const envTask = "MORAINE_TEST_TASK"

func TestMain(m *testing.M) {
	b := os.Getenv(envTask)
	if b == "" {
		os.Exit(m.Run())
	}
	runtime.LockOSThread() // users are those of a thread
	unix.Umask(0)
	var t task
	if err := json.Unmarshal([]byte(b), &t); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	w := &world{chosen: t.Chosen}
	if w.chosen == nil {
		w.chosen = choices{}
	}
	if err := w.perform(t); err != nil {
		chosen, _ := json.Marshal(w.chosen)
		fmt.Print(err, choseMark, string(chosen))
		os.Exit(1)
	}
}

// above are directories above the compared one, into which a link to ".." may lead.
const above = "/1/2/3/"

// perform carries out a task, compares the trees, and removes them.
func (w *world) perform(t task) error {
	for _, dir := range []string{t.Mounts[max(t.Delegated, 0)], t.Ext4} { // the mounts share it
		if err := os.MkdirAll(dir+above+"top", 0o755); err != nil {
			return err
		}
		if err := os.Chmod(dir+above+"top", 0o777); err != nil {
			return err
		}
	}
	if err := t.delegate(); err != nil {
		return err
	}
	w.sides = [3]*side{newSide("mount A", t.Mounts[0]), newSide("mount B", t.Mounts[1]), newSide("ext4", t.Ext4)}
	list := stepsOf(t.Seed, t.Steps)
	only := t.Only
	if only == nil {
		for i := range list {
			only = append(only, i)
		}
	}
	for _, i := range only {
		began := time.Now()
		t.inTurns(i, &list[i])
		if err := w.take(i, &list[i]); err != nil {
			return fmt.Errorf("\n%s at step %d %w", differs, i, err)
		}
		if d := time.Since(began); d > 100*time.Millisecond {
			fmt.Printf(" (%v)", d.Round(time.Millisecond))
		}
		fmt.Println()
	}
	last := len(list) - 1
	w.closeAll()
	want := tree(t.Ext4)
	for i, dir := range t.Mounts {
		if got := tree(dir); got != want {
			return fmt.Errorf("%s at step %d end: the tree of mount %d\n%s", differs, last, i, difference(got, want))
		}
	}
	for i, dir := range []string{t.Mounts[t.Seed%3], t.Ext4} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("%s at step %d removal: of %d: %w", differs, last, i, err)
		}
	}
	return nil
}

// delegate has a mount get its root delegated: it makes two names there, and waits until
// its kernel no longer answers for the directory by itself (half a second). What the mount
// makes below is delegated from its start.
func (t *task) delegate() error {
	if t.Delegated < 0 {
		return nil
	}
	for _, name := range []string{"/first", "/second"} {
		dir := t.Mounts[t.Delegated] + above + "top" + name
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Remove(dir)); err != nil {
			return err
		}
	}
	time.Sleep(time.Second)
	return nil
}

// inTurns has the mounts take turns of some steps, if one takes delegated directories.
// Only at the end of a turn the other one looks: that ends a delegation.
func (t *task) inTurns(i int, s *step) {
	if t.Delegated < 0 {
		return
	}
	turn := 80 * int(1+t.Seed/4%3)
	s.mount, s.stays = (t.Delegated+i/turn)%2, true
	s.unseen = i%turn != turn-1
}

// difference are the lines that differ.
func difference(got, want string) string {
	var out strings.Builder
	have := map[string]int{}
	for l := range strings.Lines(want) {
		have[l]--
	}
	for l := range strings.Lines(got) {
		if have[l]++; have[l] > 0 {
			fmt.Fprint(&out, "mount: ", l)
		}
	}
	for l := range strings.Lines(want) {
		if have[l] < 0 {
			fmt.Fprint(&out, "ext4:  ", l)
		}
	}
	return out.String()
}
