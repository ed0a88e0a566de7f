package adopt

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/adopted"
)

// A mover checks what the files of a directory say. Two things they do not say: how many ranks of Megatron
// there were, and that a framework writes a new checkpoint over an older one, whose last file is still
// there. Both show in the file that the framework writes last: of Megatron the tracker in the directory
// above, of torch.distributed.checkpoint .metadata. A directory of Hugging Face needs no such check: each of its
// files says its own length and tensors. The check comes before the job, and a save that begins between the two
// is not noticed.

// maxTracker bounds what is read of a tracker file, in bytes: it has one number.
const maxTracker = 64

// maxFiles bounds the files that are compared. The service refuses directories of more.
const maxFiles = 1 << 14

// anyway ends the texts of refusals that the caller may overrule.
const anyway = "If all ranks have written it and nothing writes there, say so (--complete)"

// directory is a directory that is to be adopted.
type directory struct {
	c    *client.Client
	path string
}

// checkLast fails if the file that a framework writes last does not say that the directory is complete.
func (d directory) checkLast(ctx context.Context, f Format) error {
	if f != DCP && f != Megatron {
		return nil
	}
	files, err := d.files(ctx)
	if err != nil {
		return err
	}
	if meta, ok := files[adopted.DCPMetadata]; ok {
		isData := func(name string) bool { return strings.HasSuffix(name, ".distcp") }
		return notSince(files, isData, meta, adopted.DCPMetadata)
	}
	if f == DCP {
		return nil // a mover says that it is missing
	}
	return d.checkTracker(ctx, files)
}

// files returns the files below the directory, by path.
func (d directory) files(ctx context.Context) (map[string]client.Attr, error) {
	root := path.Clean("/" + d.path)
	out := map[string]client.Attr{}
	enough := errors.New("enough")
	err := d.c.Walk(ctx, root, func(at string, a client.Attr) error {
		if !a.IsDir() {
			out[strings.TrimPrefix(strings.TrimPrefix(at, root), "/")] = a
		}
		if len(out) > maxFiles {
			return enough
		}
		return nil
	})
	if errors.Is(err, enough) {
		err = nil
	}
	return out, err
}

// checkTracker compares an iteration of Megatron with the tracker file above.
func (d directory) checkTracker(ctx context.Context, files map[string]client.Attr) error {
	dir, name := path.Split(path.Clean("/" + d.path))
	at := path.Join(dir, adopted.MegatronTracker)
	tracker, err := d.c.Stat(ctx, at)
	if errors.Is(err, moraine.NotFound) {
		return incomplete("there is no %s: Megatron writes it when all ranks have written. Wait for it", at)
	}
	if err != nil {
		return err
	}
	last, err := d.iterationIn(ctx, at)
	if err != nil {
		return err
	}
	own, isIteration := iterationOf(name)
	switch {
	case !isIteration:
		return incomplete("%s is no name of an iteration (iter_0000100), so %s does not say that it is complete", name, at)
	case own != last && (own == release || last == release), own > last:
		return incomplete("%s names iteration %s: Megatron writes it when all ranks have written %s. Wait until it does", at, iterationText(last), name)
	case own < last:
		if err := d.hasFilesOf(ctx, files, path.Join(dir, iterationName(last))); err != nil {
			return err
		}
	}
	return notSince(files, func(string) bool { return true }, tracker, at)
}

// iterationIn reads the number in a tracker file.
func (d directory) iterationIn(ctx context.Context, tracker string) (uint64, error) {
	r, err := d.c.OpenFile(ctx, tracker)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	b := make([]byte, min(r.Size(), maxTracker))
	if err := r.ReadRange(ctx, b, 0); err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(b))
	if n, ok := iterationOf(text); ok && n == release {
		return n, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, incomplete("%s names no iteration: %q", tracker, text)
	}
	return n, nil
}

// hasFilesOf fails unless each file of the iteration that the tracker names is there too. That one is complete,
// and says which ranks there are.
func (d directory) hasFilesOf(ctx context.Context, files map[string]client.Attr, newest string) error {
	want, err := (directory{d.c, newest}).files(ctx)
	if errors.Is(err, moraine.NotFound) {
		return incomplete("%s, which the tracker file names, is gone: nothing else says how many ranks have written", newest)
	}
	if err != nil {
		return err
	}
	for name := range want {
		if _, ok := files[name]; !ok {
			return incomplete("file %s is missing, which the later %s has", name, newest)
		}
	}
	return nil
}

// notSince fails if one of the files has changed after the file that is written last. Both times must say
// so: a copy has the times of its original as modification times, and the clock of a node that writes may be
// wrong.
func notSince(files map[string]client.Attr, of func(name string) bool, last client.Attr, lastName string) error {
	for name, a := range files {
		if of(name) && a.ModTime().After(last.ModTime()) && a.ChangeTime().After(last.ChangeTime()) {
			return incomplete("file %s has changed after %s, which is written last: a later checkpoint may be half-written over this one", name, lastName)
		}
	}
	return nil
}

// release stands for the directory "release" of a converted model, which has no number.
const release = ^uint64(0)

// iterationOf returns the iteration that the name of a directory has.
func iterationOf(name string) (n uint64, ok bool) {
	if name == "release" {
		return release, true
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(name, "iter_"), 10, 63)
	return n, err == nil && name == iterationName(n)
}

// iterationName is how Megatron names the directory of an iteration.
func iterationName(n uint64) string {
	if n == release {
		return "release"
	}
	return fmt.Sprintf("iter_%07d", n)
}

func iterationText(n uint64) string {
	if n == release {
		return "release"
	}
	return strconv.FormatUint(n, 10)
}

// incomplete is the refusal of a directory that may be half-written.
func incomplete(format string, args ...any) error {
	return &moraine.Error{Kind: moraine.Incomplete, Err: fmt.Errorf("%s. %s", fmt.Sprintf(format, args...), anyway)}
}
