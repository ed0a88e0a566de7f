// Package versity is what both S3 servers of Moraine add to the versitygw library: bounds
// of time on its connections, answers to requests whose body it does not read, and the one
// account.
package versity

import (
	"errors"
	"reflect"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"
	"github.com/versity/versitygw/s3api"
)

// The library bounds connections and sets no time on them, so that a stranger without any
// key could hold all of them by saying nothing. Its HTTP server has the settings for that
// and is out of reach but for this: Bound sets them right before the server serves.

// idleTimeout is how long a connection may wait for its next request.
const idleTimeout = 2 * time.Minute

// appField is where the library's server keeps what serves it.
const appField = "app"

// errNoApp is a library that keeps it elsewhere.
var errNoApp = errors.New("s3api.S3ApiServer has no field " + appField + " of *fiber.App: connections that say nothing could not be ended")

// Check fails where Bound could do nothing.
func Check() error {
	if f, ok := reflect.TypeFor[s3api.S3ApiServer]().FieldByName(appField); !ok || f.Type != reflect.TypeFor[*fiber.App]() {
		return errNoApp
	}
	return nil
}

// Bound returns the option that has the server end connections whose headers take longer
// than header to come, and those on which a body or an answer takes longer than stall: what
// moves the content of objects may move the deadlines of its connection as it gets on. It
// also has the server keep places (places.go), and read the bodies of requests that it refuses
// (drain.go).
func Bound(header, stall time.Duration, places *Places) s3api.Option {
	return func(s *s3api.S3ApiServer) {
		s3api.WithOnListen(func() {
			app := (*fiber.App)(reflect.ValueOf(s).Elem().FieldByName(appField).UnsafePointer())
			server := app.Server()
			server.Handler = draining(server.Handler)
			server.ConnState = places.state
			server.ReadTimeout, server.WriteTimeout, server.IdleTimeout = header, stall, idleTimeout
			server.HeaderReceived = func(*fasthttp.RequestHeader) fasthttp.RequestConfig {
				return fasthttp.RequestConfig{ReadTimeout: stall}
			}
		})(s)
	}
}
