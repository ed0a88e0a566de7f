package object

import (
	"context"
	"io"
	"net/http"

	"github.com/morainefs/moraine"
)

type fenceKey struct{}

type headerKey struct{}

// withHeader returns a context under which requests carry a header that the client
// library has no field for. The signature does not cover it, so it must not be one
// of x-amz-*.
func withHeader(ctx context.Context, name, value string) context.Context {
	return context.WithValue(ctx, headerKey{}, [2]string{name, value})
}

// WithFence returns a context under which every request calls held before it is
// sent, and again before each piece of its body. An error of held stops the request
// and becomes its error. The error should be of kind Fenced.
func WithFence(ctx context.Context, held func() error) context.Context {
	return context.WithValue(ctx, fenceKey{}, held)
}

// fence is a RoundTripper below the signer. A request that has passed it may still
// be in flight for as long as the store accepts its signature. The metadata service
// does not reuse a key before that.
type fence struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (f *fence) RoundTrip(req *http.Request) (*http.Response, error) {
	if h, ok := req.Context().Value(headerKey{}).([2]string); ok {
		req = req.Clone(req.Context()) // a RoundTripper may not change the request it is given
		req.Header.Set(h[0], h[1])
	}
	held, _ := req.Context().Value(fenceKey{}).(func() error)
	if held == nil {
		return f.next.RoundTrip(req)
	}
	if err := held(); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, &fencedError{err: err}
	}
	if req.Body != nil {
		// A RoundTripper must not change the caller's request.
		req = req.Clone(req.Context())
		req.Body = &fencedBody{ReadCloser: req.Body, held: held}
		req.GetBody = nil
	}
	return f.next.RoundTrip(req)
}

type fencedBody struct {
	io.ReadCloser
	held func() error
}

// Read implements io.Reader.
func (b *fencedBody) Read(p []byte) (int, error) {
	if err := b.held(); err != nil {
		return 0, &fencedError{err: err, begun: true}
	}
	return b.ReadCloser.Read(p)
}

// fencedError marks a request that the fence stopped; begun: after a part of it was
// sent.
type fencedError struct {
	err   error
	begun bool
}

func (e *fencedError) Error() string { return e.err.Error() }
func (e *fencedError) Unwrap() error { return e.err }

// CheckFence calls the fence of ctx, if it has one, as each request does before it
// is sent.
func CheckFence(ctx context.Context) error {
	held, _ := ctx.Value(fenceKey{}).(func() error)
	if held == nil {
		return nil
	}
	if err := held(); err != nil {
		return MakeError(moraine.Fenced, true, err)
	}
	return nil
}
