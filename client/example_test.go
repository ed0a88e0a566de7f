package client_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/morainefs/moraine/client"
)

// Connect to a cluster with the certificate in a directory, write a file, and read it back.
func ExampleOpen() {
	ctx := context.Background()
	c, err := client.Open(ctx, "moraine://host1,host2,host3/", client.Options{Certs: "/etc/moraine/certs"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	f, err := c.Create(ctx, "/hello", client.CreateOptions{})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := f.Write([]byte("hello, cluster")); err != nil {
		f.Abort()
		log.Fatal(err)
	}
	// When Commit has returned, the file is durable and visible under its name.
	if _, err := f.Commit(ctx); err != nil {
		log.Fatal(err)
	}

	r, err := c.OpenFile(ctx, "/hello")
	if err != nil {
		log.Fatal(err)
	}
	stream := r.NewStream(ctx, 0)
	defer stream.Close()
	text, err := io.ReadAll(stream)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(text))
}

// Connect as the environment says (MORAINE_ENDPOINT, MORAINE_CERTS), and list a directory. The
// paths of this client start at /datasets.
func ExampleOptionsFromEnv() {
	ctx := context.Background()
	c, err := client.Open(ctx, "moraine:///datasets", client.OptionsFromEnv(os.Getenv))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	for entry, err := range c.ReadDir(ctx, "/") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(entry.Name)
	}
}
