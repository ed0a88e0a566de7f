package client_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/morainefs/moraine/client"
)

// Connect as the environment says, write a file, and read it back.
func ExampleConnect() {
	ctx := context.Background()
	c, err := client.Connect(ctx, client.ClusterFromEnv(os.Getenv), client.Config{})
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

// List a directory.
func ExampleClient_ReadDir() {
	ctx := context.Background()
	c, err := client.Connect(ctx, client.ClusterFromEnv(os.Getenv), client.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	for entry, err := range c.ReadDir(ctx, "/datasets") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(entry.Name)
	}
}
