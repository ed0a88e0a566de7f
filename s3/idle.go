package s3

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
// and is out of reach but for this: hangUp sets them right before the server serves.

// idleTimeout is how long a connection may wait for its next request.
const idleTimeout = 2 * time.Minute

// appField is where the library's server keeps what serves it.
const appField = "app"

// errNoApp is a library that keeps it elsewhere.
var errNoApp = errors.New("s3api.S3ApiServer has no field " + appField + " of *fiber.App: connections that say nothing could not be ended")

// checkLibrary fails where hangUp could do nothing.
func checkLibrary() error {
	if f, ok := reflect.TypeFor[s3api.S3ApiServer]().FieldByName(appField); !ok || f.Type != reflect.TypeFor[*fiber.App]() {
		return errNoApp
	}
	return nil
}

// hangUp has the server end connections whose headers take longer than header to come, and
// those on which a body or an answer takes longer than stall: what moves the content of
// objects gives itself more, as long as it gets on (stall.go).
func hangUp(header, stall time.Duration) s3api.Option {
	return func(s *s3api.S3ApiServer) {
		s3api.WithOnListen(func() {
			app := (*fiber.App)(reflect.ValueOf(s).Elem().FieldByName(appField).UnsafePointer())
			server := app.Server()
			server.ReadTimeout, server.WriteTimeout, server.IdleTimeout = header, stall, idleTimeout
			server.HeaderReceived = func(*fasthttp.RequestHeader) fasthttp.RequestConfig {
				return fasthttp.RequestConfig{ReadTimeout: stall}
			}
		})(s)
	}
}
