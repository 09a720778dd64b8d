package tidegate_test

import (
	"context"
	"fmt"
	"log"
	"net/http"

	tidegate "tidegate.example/go"
)

// A check costs one hit on a descriptor, here the user.
func ExampleClient() {
	client := &tidegate.Client{URL: "http://127.0.0.1:8080", Domain: "api"}
	verdict, err := client.Check(context.Background(), tidegate.Descriptor{{Key: "user", Value: "ann"}})
	if err != nil {
		log.Fatal(err)
	}
	if !verdict.Allowed {
		fmt.Println(verdict.Problem().Detail)
	}
}

// A server behind one proxy, which limits its clients by user, or else by address.
func ExampleMiddleware() {
	limited := tidegate.Middleware{
		Client:      &tidegate.Client{URL: "http://127.0.0.1:8080", Domain: "http"},
		TrustedHops: 1,
		Descriptors: func(request *http.Request, client string) []tidegate.Descriptor {
			if user, _, ok := request.BasicAuth(); ok {
				return []tidegate.Descriptor{{{Key: "user", Value: user}}}
			}
			return tidegate.ByAddress(request, client)
		},
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:8000", limited.Wrap(http.DefaultServeMux)))
}

// All requests of the client are paced together.
func ExampleTransport() {
	client := &http.Client{Transport: &tidegate.Transport{}}
	response, err := client.Get("https://api.example.com/items")
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	fmt.Println(response.Status)
}
