package cli

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/morainefs/moraine"
)

// ErrorLines writes err for a person: one line for each failure, without the names of the
// functions that returned it. It adds what to do next where the error itself does not say.
func ErrorLines(err error) []string {
	if errs := split(err); errs != nil {
		var lines []string
		for _, e := range errs {
			for _, line := range ErrorLines(e) {
				if !slices.Contains(lines, line) {
					lines = append(lines, line)
				}
			}
		}
		return lines
	}
	text := Sentence(err)
	if hint := hintOf(err); hint != "" && !strings.Contains(text, hint) {
		text += "; " + hint
	}
	return []string{Visible(text)}
}

// split returns the errors that errors.Join combined, nil for any other error.
func split(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	var texts []string
	for _, e := range joined.Unwrap() {
		texts = append(texts, e.Error())
	}
	if err.Error() != strings.Join(texts, "\n") {
		return nil // text of its own around them
	}
	return joined.Unwrap()
}

// Sentence writes one error on one line. A chain of *moraine.Error names each
// object once, then the kind and the cause of the innermost.
func Sentence(err error) string {
	var parts []string
	add := func(s string) {
		s = strings.Join(strings.Fields(s), " ")
		if s != "" && !slices.Contains(parts, s) {
			parts = append(parts, s)
		}
	}
	for {
		if w, ok := err.(*wrongUse); ok {
			err = w.err
			continue
		}
		if errs := split(err); len(errs) == 1 {
			err = errs[0]
			continue
		}
		e, ok := err.(*moraine.Error)
		if !ok {
			break
		}
		if !strings.Contains(e.Op, ".") {
			add(strings.ReplaceAll(e.Op, "_", " ")) // the name of a user's action; others are functions
		}
		add(e.Ref)
		inner, nested := e.Err.(*moraine.Error)
		if !nested || inner.Kind != e.Kind {
			if e.Kind != moraine.Internal || e.Err == nil {
				add(e.Kind.String())
			}
		}
		if e.Err == nil {
			return strings.Join(parts, ": ")
		}
		err = e.Err
	}
	add(plainError(err))
	return strings.Join(parts, ": ")
}

// plainError writes an error that is not a *moraine.Error itself. Where it wraps one, that
// error becomes a sentence too, without the names of functions.
func plainError(err error) string {
	text := err.Error()
	if inner := (*moraine.Error)(nil); errors.As(err, &inner) {
		text = strings.Replace(text, inner.Error(), Sentence(inner), 1)
	}
	return text
}

// hintOf says what a caller can do about err, by its kind. It is empty where the error says
// so itself, or where there is no general advice.
func hintOf(err error) string {
	if err == nil {
		return ""
	}
	switch moraine.KindOf(err) {
	case moraine.Unauthenticated:
		if strings.Contains(err.Error(), "was not issued by an authority") {
			return "are --certs and --endpoint of the same cluster?"
		}
		return ""
	case moraine.PermissionDenied:
		if strings.Contains(err.Error(), "may not make this request") && !strings.Contains(err.Error(), `role "admin"`) {
			return "name an admin's certificate by --certs and --identity"
		}
		return ""
	case moraine.WrongCluster:
		return "name the directory and the certificates of one and the same cluster"
	case moraine.NewerFormat:
		return "run the release of moraine that wrote it, or a later one"
	case moraine.NoSpace:
		if e := (*moraine.Error)(nil); errors.As(err, &e) && e.Op == "mem.Open" {
			return "give a smaller --memory"
		}
		if strings.Contains(err.Error(), "the disk of the metadata server") {
			return "make room on that disk, or remove files (`moraine rm`)"
		}
		return "make room (`moraine rm`), or add devices"
	case moraine.SessionExpired:
		return "run the command again"
	default:
		return ""
	}
}

// IsInterrupt reports whether err only says that a signal ended ctx.
func IsInterrupt(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, moraine.Canceled))
}
