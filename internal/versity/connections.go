// Package versity has what both S3 servers of Moraine add to the versitygw
// library. That is time limits of its connections, answers to requests whose
// body it does not read, and the one account. One path through it: a server
// calls Check, and passes the option of Bound to the library. Its backend calls
// Places.Proved for a long signed request.
package versity

import (
	"errors"
	"reflect"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"
	"github.com/versity/versitygw/s3api"
)

// The library limits the number of connections but not their time, so a silent
// client without a key could hold all of them. Its HTTP server has the settings but
// does not expose them. Bound sets them right before the server serves.

// idleTimeout is how long a connection may wait for its next request.
const idleTimeout = 2 * time.Minute

// appField is the field in which the library's server keeps its application.
const appField = "app"

// errNoApp means that this version of the library keeps it elsewhere.
var errNoApp = errors.New("s3api.S3ApiServer has no field " + appField + " of *fiber.App: silent connections could not be ended")

// Check fails if Bound would have no effect.
func Check() error {
	if f, ok := reflect.TypeFor[s3api.S3ApiServer]().FieldByName(appField); !ok || f.Type != reflect.TypeFor[*fiber.App]() {
		return errNoApp
	}
	return nil
}

// Bound returns the option that limits the server's connections. The server ends
// one whose headers take longer than header to arrive, or on which a body or an
// answer takes longer than stall. Code that moves the content of objects may extend
// the deadlines of its connection as it makes progress. The server also keeps
// places free (places.go), and reads the bodies of requests that it refuses
// (drain.go).
func Bound(header, stall time.Duration, places *Places) s3api.Option {
	return func(s *s3api.S3ApiServer) {
		s3api.WithOnListen(func() {
			app := (*fiber.App)(reflect.ValueOf(s).Elem().FieldByName(appField).UnsafePointer())
			server := app.Server()
			server.Handler = places.heard(draining(server.Handler))
			server.ConnState = places.state
			server.ReadTimeout, server.WriteTimeout, server.IdleTimeout = header, stall, idleTimeout
			server.HeaderReceived = func(*fasthttp.RequestHeader) fasthttp.RequestConfig {
				return fasthttp.RequestConfig{ReadTimeout: stall}
			}
		})(s)
	}
}
